// The words of Host IR for editors with tree-sitter. The grammar is flat, as logs have other lines around programs; hir itself reads the structure.
// `words.json` is made from the tables of the language by a test (src/lsp/tests/words.rs).

const words = require("./words.json");

/** Returns a rule for one of several words. A word that is longer than all of them is a `name`. */
const one_of = (list) => choice(...list);

module.exports = grammar({
  name: "hir",
  extras: () => [/\s/],
  word: ($) => $.name,
  rules: {
    source_file: ($) => repeat($._item),
    _item: ($) =>
      choice($.comment, $.section, $.keyword, $.tensor, $.axis, $.mesh, $.unit, $.attribute, $.operator, $.word, $.number, $.sign, $.name, $.other),
    comment: () => token(choice(seq("//", /.*/), seq("#", /.*/))),
    section: () => token(choice(/%(HostIrContainer|options|tensor|kernel(_math)?)/, "Index definitions:", "Domains:")),
    keyword: () => one_of(words.keywords),
    // With its memory and its type, if the text has them: `T0_g_float`.
    tensor: () => token(prec(2, /T[0-9]+(_[A-Za-z0-9_:]+)?/)),
    axis: () => token(prec(2, new RegExp(`(${words.axis_kinds.join("|")})(${words.parallel_types.join("|")})[0-9]+`))),
    mesh: () => "DeviceMesh",
    unit: () => token(prec(2, /HostUnit[0-9]+/)),
    attribute: () => one_of(words.attributes),
    operator: () => one_of(words.operators),
    word: () => one_of(words.values),
    number: () => token(/[0-9]+(\.[0-9]*)?([eE][+-]?[0-9]+)?/),
    sign: () => one_of(words.signs),
    name: () => /[A-Za-z_][A-Za-z0-9_.]*/,
    other: () => token(prec(-1, /[^\sA-Za-z0-9_]/)),
  },
});
