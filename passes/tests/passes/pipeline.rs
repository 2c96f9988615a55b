//! Tests the parsing of pipelines and the locations of errors in them.

use grammar::{diagnostic::Diagnostic, ir::Program};

use passes::{
    Arguments, Catalog, Change, OptionKind, OptionSpec, PASSES, PIPELINES, Pass, Pipeline, Remarks, parse,
};

fn nothing(_: &mut Program, _: &Arguments, _: &mut Remarks) -> Result<Change, Diagnostic> {
    Ok(Change::Unchanged)
}

const fn option(name: &'static str, kind: OptionKind, default: Option<&'static str>) -> OptionSpec {
    OptionSpec { name, description: "", kind, default }
}

fn catalog() -> Catalog {
    Catalog { passes: LIST.iter().collect(), pipelines: NAMED.to_vec(), decisions: vec![("@lists", "fuse")] }
}

static LIST: &[Pass] = &[
    Pass {
        name: "tile",
        description: "",
        docs: "",
        options: &[
            option("size", OptionKind::Count, Some("4")),
            option("exact", OptionKind::Flag, None),
            option("by", OptionKind::Word(&["rank", "stream"]), None),
            option("names", OptionKind::Text, None),
            option("parts", OptionKind::Counts, None),
        ],
        for_one_rank: false,
        for_conditions: false,
        run: nothing,
    },
    Pass {
        name: "fuse",
        description: "",
        docs: "",
        options: &[],
        for_one_rank: false,
        for_conditions: false,
        run: nothing,
    },
];
static NAMED: &[Pipeline] = &[
    Pipeline { name: "@both", description: "", passes: "fuse, tile{size=8}" },
    Pipeline { name: "@lists", description: "", passes: "tile, tile" },
];

/// Returns the calls as they print, or the message, the text under the caret, its offset, and the label.
fn show(text: &str) -> String {
    match catalog().parse(text) {
        Ok(calls) => calls.iter().map(ToString::to_string).collect::<Vec<_>>().join(" "),
        Err(it) => {
            let label = it.labels.first().map(|(_, label)| label.as_str()).unwrap_or_default();
            let help = it.help.as_deref().map(|help| format!("; {help}")).unwrap_or_default();
            format!("{}: `{}`@{} {label}{help}", it.message, it.span().text(text), it.span().start)
        }
    }
}

#[test]
fn pipelines_are_written_out() {
    let cases = [
        ("", ""),
        ("  ", ""),
        ("fuse", "fuse"),
        (" fuse , tile ", "fuse tile{size=4}"),
        ("tile{}", "tile{size=4}"),
        ("tile{ size = 16 , exact }", "tile{size=16,exact=true}"),
        ("tile{by=rank,exact=false},fuse", "tile{size=4,by=rank,exact=false} fuse"),
        ("tile{names={a,{b,c}}}", "tile{size=4,names={a,{b,c}}}"),
        ("@both,fuse", "fuse tile{size=8} fuse"),
        ("@both{},fuse", "fuse tile{size=8} fuse"),
        ("@lists,fuse", "fuse fuse"),
        ("@lists{}", "tile{size=4} tile{size=4}"),
        ("@both{tile.size=16, tile.exact},fuse", "fuse tile{size=16,exact=true} fuse"),
        ("@both{tile.names={a,b}}", "fuse tile{size=8,names={a,b}}"),
        ("@lists{tile.parts=1, 2,3,tile.size=2}", "tile{size=2,parts=1, 2,3} tile{size=2,parts=1, 2,3}"),
    ];
    for (text, calls) in cases {
        assert_eq!(show(text), calls, "{text}");
    }
}

#[test]
fn equal_pipelines_may_have_other_texts() {
    let is_equal = |one: &str, other: &str| {
        let [one, other] = [one, other].map(|it| catalog().parse(it).ok());
        one.is_some() && one == other
    };
    assert!(is_equal("@both{}", "fuse, tile{ size=8 }"));
    assert!(is_equal("tile", "tile{size=4}"));
    assert!(is_equal("tile{by=rank,exact}", "tile{exact=true,by=rank}"));
    assert!(!is_equal("tile{exact}", "tile{exact=false}"));
    assert!(!is_equal("tile,fuse", "fuse,tile"));
}

#[test]
fn faults_point_into_the_text() {
    let cases = [
        (
            "fuse,tiel",
            "unknown pass `tiel`: `tiel`@5 expected a pass that `hir-opt --list-passes` lists; did you mean `tile`?",
        ),
        (
            "@bth",
            "unknown pipeline `@bth`: `@bth`@0 expected a pipeline that `hir-opt --list-passes` lists; did you mean `@both`?",
        ),
        (
            "fuse, zzzzzzzz",
            "unknown pass `zzzzzzzz`: `zzzzzzzz`@6 expected a pass that `hir-opt --list-passes` lists",
        ),
        ("fuse,,tile", "missing pass name: `,`@5 expected a pass"),
        ("fuse,", "the list of passes ends with a comma: ``@5 expected a pass, or no comma before this"),
        (
            "tile{sizes=4}",
            "the pass `tile` has no option `sizes`: `sizes`@5 expected one of size, exact, by, names, parts; did you mean `size`?",
        ),
        ("fuse{x=1}", "the pass `fuse` has no option `x`: `x`@5 the pass has no options"),
        (
            "tile{size=four}",
            "`four` is not a value of the option `size` of `tile`: `four`@10 expected a non-negative integer",
        ),
        ("tile{size}", "the option `size` of `tile` has no value: `size`@5 expected a non-negative integer"),
        (
            "tile{exact=1}",
            "`1` is not a value of the option `exact` of `tile`: `1`@11 expected true or false",
        ),
        (
            "tile{by=row}",
            "`row` is not a value of the option `by` of `tile`: `row`@8 expected one of rank, stream",
        ),
        ("tile{size=1,size=2}", "the option `size` is given twice: `size`@12 already given"),
        ("fuse,tile{size=4", "unclosed `{`: `{`@9 no `}` follows"),
        ("tile}", "unmatched `}`: `}`@4 no `{` precedes it"),
        ("tile{size=4}x", "text after a closing brace: `x`@12 expected `,`"),
        ("tile{size=4}{size=4}", "options are given twice: `{`@12 expected `,`"),
        (
            "@both{size=4}",
            "`size` does not name a pass of `@both`: `size`@6 expected `PASS.OPTION=VALUE`; write `tile.size`",
        ),
        (
            "@both{tile.size=4,exact}",
            "`exact` does not name a pass of `@both`: `exact`@18 expected `PASS.OPTION=VALUE`; write `tile.exact`",
        ),
        (
            "@both{count=4}",
            "`count` does not name a pass of `@both`: `count`@6 expected `PASS.OPTION=VALUE`; the passes are fuse, tile",
        ),
        (
            "@both{tle.size=4}",
            "the pipeline `@both` has no pass `tle`: `tle`@6 expected one of fuse, tile; did you mean `tile`?",
        ),
        (
            "@both{tile.sizes=4}",
            "the pass `tile` has no option `sizes`: `sizes`@11 expected one of size, exact, by, names, parts; did you mean \
             `size`?",
        ),
        (
            "@both{tile.size=1,tile.size=2}",
            "the option `tile.size` is given twice: `tile.size`@18 already given",
        ),
        (
            "@both{tile.size=x}",
            "`x` is not a value of the option `size` of `tile`: `x`@16 expected a non-negative integer",
        ),
        (
            "@both{tile.=1}",
            "missing option of the pass `tile`: `=`@11 expected one of size, exact, by, names, parts",
        ),
        (
            "@both{tile.size=1, tile . size=2}",
            "the option `tile . size` is given twice: `tile . size`@19 already given",
        ),
        (
            "@both{tile.size=1,}",
            "missing option: `}`@18 expected `PASS.OPTION=VALUE`; the passes are fuse, tile",
        ),
        (
            "@lists{tile.parts=1,2.5}",
            "`1,2.5` is not a value of the option `parts` of `tile`: `1,2.5`@18 expected positive integers, separated by commas",
        ),
        (
            "@both(tile.size=1)",
            "write the options of a pipeline in braces: `@both(tile.size=1)`@0 expected `@both{PASS.OPTION=VALUE}`",
        ),
        (
            "@both{.size=1}",
            "`.size` does not name a pass of `@both`: `.size`@6 expected `PASS.OPTION=VALUE`; the passes are fuse, tile",
        ),
    ];
    for (text, fault) in cases {
        assert_eq!(show(text), fault, "{text}");
    }
}

#[test]
fn every_name_is_unique_and_every_pipeline_reads() {
    for (at, pass) in PASSES.iter().enumerate() {
        assert!(PASSES[..at].iter().all(|it| it.name != pass.name), "{}", pass.name);
        assert!(!pass.description.is_empty());
    }
    for pipeline in PIPELINES {
        assert!(parse(pipeline.name).is_ok_and(|calls| !calls.is_empty()), "{}", pipeline.name);
    }
}
