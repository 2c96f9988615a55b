//! Tests that one program reads the same in each form in which people paste it.

use grammar::{diagnostic::Diagnostic, print, read};

const PLAIN: &str = "\
%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{2}, iS3{4}] (DeviceMesh{0 1})) :
  T1_g_float[iS2{2}, iS3{4}] (DeviceMesh{0 1}) = ALLOCATE(buffer=T1_g_float[iS2{2}, iS3{4}] (DeviceMesh{0 1}), mem_type=global, size=8, zero_init=false, resets_to_zero=false)
  FOR i5 from 0 to 2:
    SetCurrentStream(Stream i5)
    Communication 7 (type=Allgather, team=(0 1), input=T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1}), output=T1_g_float[iS2{2}, iS3{4}] (DeviceMesh{0 1}), backend=NCCL)
    Wait(Communication 7)
} // %HostIrContainer
";

fn codes(diagnostics: &[Diagnostic]) -> Vec<&'static str> {
    diagnostics.iter().map(|it| it.code.text()).collect()
}

/// Checks that `text` reads as the plain program, with these diagnostic codes, and that all spans are inside
/// the text.
#[track_caller]
fn check(text: &str, expected: &[&str]) {
    let (programs, diagnostics) = read(text);
    assert_eq!(codes(&diagnostics), expected, "{diagnostics:?}\n{text}");
    let printed: Vec<String> = programs.iter().map(print).collect();
    assert_eq!(printed, [PLAIN]);
    for span in diagnostics.iter().flat_map(|it| &it.labels).map(|(span, _)| span) {
        assert!(text.get(span.start as usize..span.end as usize).is_some());
    }
}

fn prefixed(prefix: &str) -> String {
    PLAIN.lines().map(|line| format!("{prefix}{line}\n")).collect()
}

#[test]
fn nothing_is_copied_that_is_clean() {
    let clean = grammar::dump_cleanup::clean(PLAIN);
    assert!(matches!(clean.text, std::borrow::Cow::Borrowed(_)));
    check(PLAIN, &[]);
}

#[test]
fn prefixes() {
    for prefix in ["// ", "//", "  // ", "# ", " * ", "> ", "    ", "\t", "[1,0]<stdout>:", "rank0: "] {
        check(&prefixed(prefix), &[]);
    }
    check(&format!("Some prose.\n{}more prose\n", prefixed("  // ")), &[]);
    check(&format!("/*\n{} */\nvoid f();\n", prefixed(" * ")), &[]);
    check(&format!("/* {}*/\n", prefixed(" * ").trim_start_matches(" * ")), &[]);
}

#[test]
fn a_prefixed_container_beside_a_plain_one_is_a_comment() {
    check(&format!("{}\n{PLAIN}", prefixed("// ")), &[]);
    check(&format!("{PLAIN}\n{}", prefixed("# ")), &[]);
}

#[test]
fn ranks_whose_lines_alternate() {
    let other = |line: &str| format!("[1,1]<stderr>:NCCL INFO {}\n", line.len());
    let text: String = PLAIN.lines().map(|line| format!("[1,0]<stdout>:{line}\n{}", other(line))).collect();
    check(&text, &[]);
}

#[test]
fn prefixes_that_change() {
    let stamps: [fn(usize) -> String; 9] = [
        |at| format!("2025-10-08T12:0{}:{:02}.{}Z ", at % 7, at * 7 % 60, 1234567 + at),
        |at| format!("[2025-10-08 12:00:0{at},123] "),
        |at| format!("I1008 12:00:01.12345{at} {} executor.cpp:{}] ", 998 + at, 99 + at),
        |at| format!("12:00:01.{:03} ", at),
        |at| format!("test\tRun tests\t2025-10-08T12:00:01.123456{at}Z "),
        |at| format!("Oct {:2} 12:00:01 node7 python[{at}]: ", at + 8),
        |at| format!("{:>6}\t", at + 98),
        |at| format!("[{:>8}.123456] ", at * 1000),
        |at| format!("{at}: "),
    ];
    for stamp in stamps {
        let text: String =
            PLAIN.lines().enumerate().map(|(at, line)| format!("{}{line}\n", stamp(at))).collect();
        check(&text, &[]);
        // With other lines around it, and with blanks lost at the ends of lines.
        let around = format!("{}begins\n{text}{}over\n", stamp(90), stamp(91));
        check(&around.replace(" \n", "\n"), &[]);
        check(&text.replacen('\n', "\n\n", 3), &[]);
        // Loggers print their prefix only before the first line of a message.
        check(&format!("{}begins\n{}{PLAIN}{}over\n", stamp(1), stamp(2), stamp(3)), &[]);
    }
}

#[test]
fn lines_between_those_with_a_prefix() {
    let text: String = PLAIN.lines().map(|line| format!("12:00:01.123 {line}\n")).collect();
    let wait = text.rfind("12:00:01.123     Wait").unwrap_or(0);
    let (before, after) = text.split_at(wait);
    check(&format!("{before}[W1008 NCCL says hello\n{after}"), &["lossy-text"]);
    // Prose is not a prefix.
    check(&format!("The %HostIrContainer of rank 0:\n{}", prefixed("// ")), &[]);
    assert_eq!(codes(&read("the %HostIrContainer { of rank 0\nis empty\n").1), ["E0103"]);
}

#[test]
fn ranks_in_one_log() {
    let tags: [[&str; 2]; 6] = [
        ["[1,0]<stdout>:", "[1,1]<stdout>:"],
        ["[1,0]<stdout>: ", "[1,12]<stdout>: "],
        ["rank0: ", "rank1: "],
        ["[rank0]:", "[rank1]:"],
        ["[default0]:", "[default1]:"],
        [" 0: ", "11: "],
    ];
    for [zero, one] in tags {
        let mixed: String = PLAIN.lines().map(|line| format!("{zero}{line}\n{one}{line}\n")).collect();
        let (programs, diagnostics) = read(&mixed);
        assert!(diagnostics.is_empty(), "{diagnostics:?}\n{mixed}");
        assert_eq!(programs.iter().map(print).collect::<Vec<_>>(), [PLAIN, PLAIN], "{mixed}");
        let line = |at: usize| programs[at].spans.header.text(&mixed);
        assert_eq!(line(0), line(1));
        check(&prefixed(one), &[]);
    }
}

#[test]
fn line_ends_blanks_and_marks() {
    check(&PLAIN.replace('\n', "\r\n"), &[]);
    check(&format!("\u{feff}{PLAIN}"), &[]);
    check(&PLAIN.replace("  ", "\u{a0}\u{a0}"), &[]);
    check(&PLAIN.replace("    ", "\t").replace("\n  ", "\n    "), &[]);
}

#[test]
fn characters_made_prettier() {
    let escaped = PLAIN.replace("->", "-&gt;");
    check(&escaped, &[]);
    check(&escaped.replace("  ", "&nbsp; "), &[]);
    for arrow in ["\u{2192}", "\u{2013}>", "\u{2212}>"] {
        check(&PLAIN.replace("->", arrow), &[]);
        check(&prefixed("> ").replace("->", arrow), &[]);
    }
    let coloured: String = PLAIN.lines().map(|line| format!("\u{1b}[1;32m{line}\u{1b}[0m\n")).collect();
    check(&coloured, &[]);
    check(&PLAIN.replace("Communication", "\u{1b}[01;31m\u{1b}[KCommunication\u{1b}[m\u{1b}[K"), &[]);
    check(&PLAIN.replace('\n', "\r"), &[]);
    check(&PLAIN.replace('\n', "\r\r\n"), &[]);
    // Spans of diagnostics refer to the source.
    let text = format!("// \u{2192}\n{}", PLAIN.replace("->", "\u{2192}").replace("Wait(", "Waits("));
    let (_, diagnostics) = read(&text);
    assert_eq!(diagnostics[0].span().text(&text), "Waits");
    let text = PLAIN.replace(") ->", ") \u{2192}\u{2192}");
    assert_eq!(read(&text).1[0].span().text(&text), "\u{2192}");
}

#[test]
fn blank_lines_put_in() {
    check(&PLAIN.replace('\n', "\n\n"), &[]);
    let sections = "Index definitions:\n  i84 = rank + 1;\n  i85 = i84 * 2;\n\nDomains:\n  T0: logical(iS3{8}), split(iS3{8}, 4) -> (ideviceIdx.x0{2}, iS1{4})\n";
    let text = format!("{PLAIN}\n{sections}\n  done = 1\n");
    let (programs, diagnostics) = read(&text);
    let (doubled, more) = read(&text.replace('\n', "\n\n"));
    assert_eq!((diagnostics, more), (Vec::new(), Vec::new()));
    assert_eq!(print(&programs[0]), print(&doubled[0]));
    assert!(print(&programs[0]).contains("i85 = ") && print(&programs[0]).contains("split("));
}

#[test]
fn logs_around_and_between() {
    check(&format!("[ RUN      ] A.b\n\n{PLAIN}\n[       OK ] A.b (3 ms)\n"), &[]);
    check(&format!("see:\n```\n{PLAIN}```\n"), &[]);
    check(&format!("Fusion after pass: Lower\n{PLAIN}{}\n", "=".repeat(40)), &[]);
    let posting = "Posting Communication 7 (type=Allgather, team=(0 1)) with input_tensor [1, 4] and output_tensor [2, 4]\n";
    check(&PLAIN.replace("    Wait", &format!("{posting}    Wait")), &["lossy-text"]);
}

#[test]
fn broken_words() {
    check(&PLAIN.replace("resets_to_zero=false", "resets_to_zero=fals\ne"), &["lossy-wrap"]);
    check(&PLAIN.replace("output=T1_g_float", "output=T1_g_flo\nat"), &["lossy-wrap"]);
    check(&PLAIN.replace("(Stream i5)", "(Stream\ni5)"), &[]);
    check(&PLAIN.replace("Wait(Communication 7)", "Wait\n    Communication 7"), &[]);
}

#[test]
fn terminals_of_every_width() {
    for width in 40..110 {
        let mut text = String::new();
        for line in PLAIN.lines() {
            let bytes: Vec<char> = line.chars().collect();
            let parts: Vec<String> = bytes.chunks(width).map(|it| it.iter().collect()).collect();
            text.push_str(&parts.join("\n"));
            text.push('\n');
        }
        // There is one warning if the width is found, otherwise one per split word; none if no word is split.
        let warnings = read(&text).1.len();
        check(&text, &vec!["lossy-wrap"; warnings]);
    }
}
