//! Texts with faults: lost indentation, independent errors, texts that break off, hostile texts.

use super::*;

#[test]
fn lost_indentation_is_recovered_where_certain() {
    let flat = "GetCurrentStream into Stream 0x3d\nFOR i5 from 0 to 3:\nSetCurrentStream to Stream i5\n\
                Synchronize Stream 0x3d\nWait Communication 272\nSetCurrentStream to Stream 0x3d\n\
                FOR i5 from 0 to 3:\nSynchronize Stream i5\n";
    let text = wrap(flat);
    let (file, diagnostics) = parse(&text);
    assert_eq!(diagnostics.iter().map(|it| it.code).collect::<Vec<_>>(), [Code::LossyIndent]);
    let mut lines = Vec::new();
    show_body(&file.containers[0].body, 0, &mut lines);
    assert_eq!(
        lines,
        [
            "<0x3d> = GetCurrentStream()",
            "for i5 0..3",
            "  SetCurrentStream(<i5>)",
            "  Synchronize(<0x3d>)",
            "  Wait(Communication#272())",
            "SetCurrentStream(<0x3d>)",
            "for i5 0..3",
            "  Synchronize(<i5>)",
        ]
    );
}

#[test]
fn lost_indentation_of_the_older_pattern() {
    let flat = "GetCurrentStream into Stream 0\nFOR streamIdx in istreamIdx3{8}:\n\
                SetCurrentStream to Stream ( streamIdx % numberOfStreams )\nSynchronize Stream 0\n\
                FOR streamIdx in istreamIdx3{8}:\nSetCurrentStream to Stream ( streamIdx % numberOfStreams )\n\
                Wait Communication 3\nSetCurrentStream to Stream 0\n\
                Synchronize Stream ( streamIdx % numberOfStreams )\nWait Communication 4\n";
    let text = wrap(flat);
    let (file, diagnostics) = parse(&text);
    assert_eq!(diagnostics.iter().map(|it| it.code).collect::<Vec<_>>(), [Code::LossyIndent]);
    let mut lines = Vec::new();
    show_body(&file.containers[0].body, 0, &mut lines);
    let depths: Vec<usize> = lines.iter().map(|it| it.len() - it.trim_start().len()).collect();
    assert_eq!(depths, [0, 0, 2, 2, 0, 2, 2, 2, 2, 0], "{lines:?}");
}

#[test]
fn lost_indentation_that_could_mean_two_things() {
    let label = "the indentation is lost, and the end of this body cannot be determined; expected an indented body after this line";
    check_errors(
        &wrap(
            "FOR i5 from 0 to 3:\nWait Communication 1\nWait Communication 2\nIF Manual b1:\nStartCoalescing\n",
        ),
        &[&format!("E0106 `FOR i5 from 0 to 3:`: {label}"), &format!("E0106 `IF Manual b1:`: {label}")],
    );
}

#[test]
fn independent_errors_are_all_reported() {
    check_errors(
        &wrap(
            "  i1 = 3 + ;\n  T1_g_float[iS1{4}] = ALLOCATE(mem_type=global\n  T1_g_float[iS1{4}] = Set( T0_g[iS0{4}] )\n  \
             FOR i in iS0{4}\n    Wait Communication\n  IF Manual :\n    StartCoalescing\n  ELSE:\n    x = = 3\n  \
             i2 = 99999999999999999999\n  i3 = “3”\n  T3_g[iS0{4} = Set( T0_g[iS0{4}] )\n",
        ),
        &[
            "E0102 ``: the statement ends too early; expected a value",
            "E0102 `(`: `(` is never closed; opened here",
            "E0102 ``: the line of a loop or branch has no `:`; expected `:`",
            "E0102 ``: the statement ends too early; expected a number",
            "E0102 `:`: unexpected `:`; expected a value",
            "E0102 `=`: unexpected `=`; expected a value",
            "E0107 `99999999999999999999`: the number does not fit in 64 bits; expected a value below 2^63",
            "E0101 `“`: unexpected character `“`; not part of the language",
            "E0101 `”`: unexpected character `”`; not part of the language",
            "E0104 `[`: the `[` of the tensor is never closed; opened here",
        ],
    );
}

#[test]
fn texts_that_break_off() {
    let closed = "E0105 `%HostIrContainer`: the container is never closed; opened here";
    let head = "%HostIrContainer { () -> () :\n";
    check_errors(head, &[closed]);
    check_errors(&format!("{head}  T1_g[iS0{{4}}] ="), &[closed]);
    check_errors(&format!("{head}  i1 = max(3, "), &["E0105 `(`: the text ends inside `(`; opened here"]);
    check_errors(
        &format!("{head}  T1_g[iS0{{4}}"),
        &["E0105 `[`: the `[` of the tensor is never closed; opened here"],
    );
    check_errors(
        "some log\n",
        &[
            "E0103 `some log`: no `%HostIrContainer` in this text; expected `%HostIrContainer { (inputs) -> (outputs) :`",
        ],
    );
    check_errors(
        &format!("{head}  StartCoalescing\n}}\n  EndCoalescing\n}} // %HostIrContainer\n"),
        &["E0102 `}`: `}` closes a container that has already ended; expected no second `}`"],
    );
}

#[test]
fn a_text_in_utf_16_is_named() {
    let text = "a log\n%HostIrContainer { () -> () :\n}\n";
    let orders = [(u16::to_le_bytes as fn(u16) -> [u8; 2], "utf-16le"), (u16::to_be_bytes, "utf-16be")];
    for (to_bytes, name) in orders {
        for (mark, name) in [(Some(0xfeff), "utf-16"), (None, name)] {
            let bytes = mark.into_iter().chain(text.encode_utf16()).flat_map(to_bytes).collect();
            let help = parse(&grammar::decode(bytes)).1.into_iter().find_map(|it| it.help);
            assert!(help.is_some_and(|it| it.contains(&format!("iconv -f {name} "))), "{name}");
        }
    }
}

#[test]
fn hostile_texts_are_read_in_linear_time() {
    let deep: String = (0..3000).map(|at| format!("{}FOR i in iS0{{4}}:\n", " ".repeat(at))).collect();
    let codes = |body: &str| parse(&wrap(body)).1.iter().map(|it| it.code).collect::<Vec<_>>();
    assert_eq!(codes(&deep), [Code::Syntax]);
    assert_eq!(codes(&format!("  i1 = {}\n  i2 = 3\n", "(".repeat(50_000))), [Code::Syntax]);
    for part in ["T0_g[", "T0_g[iS0{", "f(", "T1_g[] = f(\n", "%", "x {", "[", "ELSE:\n", "}", "FOR "] {
        assert!(!codes(&part.repeat(20_000)).is_empty(), "{part}");
    }
    assert!(has_errors(&parse(&"% // %HostIrContainer {".repeat(20_000)).1));
}

const SAMPLE: &str = "%options a=1\n%HostIrContainer { (T0_g_float[iS0{4}] (DeviceMesh{0 1})) -> (T1_g[iS1{4}]) :\n  \
    Stream 0x1f = GetCurrentStream()\n  FOR i5 from 0 to ( i3 % 2 ):\n    IF Manual ( i5 == rank ):\n    ELSE:\n      \
    ShareMemHandles(P2PCommunication 3 (type=send, buffer=T1_g[iS1{4}], peer=i5),\n      \
    P2PCommunication 3 (type=send, buffer=T1_g[iS1{4}], peer=i5)\n      Wait(Communication 3)\n  \
    T1_g[iS1{4}]\n     = linear(T0_g_float[iS0{4}] (DeviceMesh{0 1}),\n      T0_g_float[iS0{4}] (DeviceMesh{0 1})  )\n  \
    Deallocate {\n    T1_g[iS1{4}]\n  }\n\nHostUnit0: Inputs={i7, } -> Outputs={T3_g[ ?S4{( i7 + 1 )} ], }Inputs:\n  i7\n\
    Outputs:\n\n%kernel {\ni9 = -i7;\n} // %kernel\n} // %HostIrContainer\n\nIndex definitions:\n  i3 = i7 % 2;\n\n\
    Domains:\n  T1: logical(iS1{4}), merge(iS2{2}, iS3{2}) -> (iS1{4})\n";

#[test]
fn the_sample_is_fine() {
    assert_eq!(parse(SAMPLE).1, []);
}

proptest::proptest! {
    /// Any damage to the text leaves all spans inside the text, and the parser reports it or still finds a
    /// container.
    #[test]
    fn damaged_texts_do_no_harm(edits in proptest::collection::vec((0..2000usize, 0..60usize, 0..2000usize, 0..24usize), 1..6)) {
        let bits = ["(", ")", "{", "}", "[", "]", ",", ";", "=", ":", "FOR ", "ELSE:", "\n", "T0_g[", "iS0{", "-", "é", "#", "->", "(a)(b)"];
        let mut text = SAMPLE.to_string();
        for (at, length, to, bit) in edits {
            let place = |text: &str, at: usize| (at % (text.len() + 1)..=text.len()).find(|it| text.is_char_boundary(*it)).unwrap_or(0);
            let (start, end) = (place(&text, at), place(&text, at % (text.len() + 1) + length));
            let cut = text.get(start..end).unwrap_or("").to_string();
            match bits.get(bit) {
                Some(bit) => text.replace_range(start.min(end)..start.max(end), bit),
                None => text.insert_str(place(&text, to), &cut),
            }
        }
        let (file, diagnostics) = parse(&text);
        proptest::prop_assert!(!file.containers.is_empty() || has_errors(&diagnostics));
        for diagnostic in &diagnostics {
            let span = diagnostic.span();
            proptest::prop_assert!(span.start <= span.end && span.end as usize <= text.len(), "{diagnostic:?}");
        }
    }
}

#[test]
fn branches_of_a_folded_text() {
    let text = "%HostIrContainer { (T0_g_float[iS0{4}]) -> () : IF Manual ( rank == 0 ): Wait(Communication 1) ELSE: \
                Wait(Communication 2) } // %HostIrContainer\n";
    let (_, diagnostics) = grammar::read(text);
    let codes: Vec<Code> = diagnostics.iter().map(|it| it.code).collect();
    assert_eq!(codes, [Code::LostIndentation; 2], "{diagnostics:?}");
    let text = "%HostIrContainer { () -> () :\n  ELSE:\n    StartCoalescing\n} // %HostIrContainer\n";
    let codes: Vec<Code> = grammar::read(text).1.iter().map(|it| it.code).collect();
    assert_eq!(codes, [Code::Syntax]);
}

#[test]
fn what_stands_behind_the_closer() {
    let body = "%HostIrContainer { (T0_g_float[iS0{4}]) -> (T0_g_float[iS0{4}]) :\n}";
    let domains = "Domains:\n  T0: logical(iS0{4}), allocation(iS0{4})\n";
    for between in [
        "\n",
        " // %HostIrContainer\n\n",
        " // %HostIrContainer1\n",
        " // %HostIrContainer foo\n",
        " // done\n",
    ] {
        let (programs, diagnostics) = grammar::read(&format!("{body}{between}{domains}"));
        assert!(diagnostics.is_empty(), "{between}: {diagnostics:?}");
        assert!(grammar::print(&programs[0]).contains("allocation("), "{between}");
    }
    // In a text folded into one line, the sections and the next container follow the closing brace.
    let folded = body.replace('\n', " ");
    let (programs, _) =
        grammar::read(&format!("{folded} // %HostIrContainer {folded} // %HostIrContainer {domains}"));
    let sections: Vec<bool> = programs.iter().map(|it| grammar::print(it).contains("allocation(")).collect();
    assert_eq!(sections, [false, true]);
}

#[test]
fn what_is_dropped_holds_brackets() {
    let text = "%HostIrContainer { () -> () :\n\nHostUnit0: Inputs={T0_g_float[iS0{4}]} -> Outputs={T1_g_float[iS1{4}]}\n\
                %kernel {\nResize: iS3{4}rf by 0 and 2 -> iS-1{6}\nT1_g_float[iS1{4}]\n   = relu(T0_g_float[iS0{4}]);\n\
                TransformPrinter :\nT1_g_float[iS1{4}] { 6 }\n} // %kernel\n} // %HostIrContainer\n";
    let (programs, diagnostics) = grammar::read(text);
    let codes: Vec<Code> = diagnostics.iter().map(|it| it.code).collect();
    assert_eq!(codes, [Code::LossyText; 2], "{diagnostics:?}");
    assert!(grammar::print(&programs[0]).contains("relu("));
    assert_eq!(grammar::read(&grammar::fix(text)).1, []);
}
