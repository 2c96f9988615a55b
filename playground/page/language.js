// The colours of the editor, from the TextMate grammar, which a test compares with the tables of the language.

import { StreamLanguage } from "@codemirror/language";
import grammar from "grammar";

// Colours of CodeMirror that have enough contrast on every background of the page.
const tags = { keyword: "keyword", entity: "className", support: "variableName.special", variable: "variableName", constant: "number",
  comment: "comment", string: "string", storage: "className", markup: "meta", punctuation: "punctuation" };

/** The patterns of the grammar that match within a line. */
function patterns(rules) {
  return rules.flatMap(rule => {
    if (rule.include) return patterns(grammar.repository[rule.include.slice(1)].patterns ?? [grammar.repository[rule.include.slice(1)]]);
    if (!rule.match) return [];
    const name = rule.name ?? rule.captures?.[1]?.name ?? "";
    return [[new RegExp(rule.match.replaceAll("\\h", "[0-9a-fA-F]"), "y"), tags[name.split(".")[0]] ?? null]];
  });
}
const all = patterns(grammar.patterns);

export const language = StreamLanguage.define({
  token(stream) {
    for (const [pattern, tag] of all) {
      pattern.lastIndex = stream.pos;
      const found = pattern.exec(stream.string);
      if (found && found[0]) {
        stream.pos += found[0].length;
        return tag;
      }
    }
    if (!stream.eatWhile(/[\w.]/)) stream.next();
    return null;
  },
  languageData: { commentTokens: { line: "//" } },
});
