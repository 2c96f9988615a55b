//! Tests that a program is read from the logs that people paste, or refused with what to do.

use grammar::{
    codes::Code,
    diagnostic::{Diagnostic, has_errors},
    print, read,
};

const PLAIN: &str = "\
%HostIrContainer { (T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1})) -> (T1_g_float[iS2{2}, iS3{4}] (DeviceMesh{0 1})) :
  T1_g_float[iS2{2}, iS3{4}] (DeviceMesh{0 1}) = ALLOCATE(mem_type=global, zero_init=false)
  FOR i5 from 0 to 2:
    Communication 7 (type=Allgather, team=(0 1), input=T0_g_float[ideviceIdx.x0{2}, iS1{4}] (DeviceMesh{0 1}), output=T1_g_float[iS2{2}, iS3{4}] (DeviceMesh{0 1}), backend=NCCL)
    Wait(Communication 7)
} // %HostIrContainer
";

/// Prefixes of rank `R` in the line `L`: digits in their place.
const PREFIXES: &[&str] = &[
    "[pod/job-R/main] ",
    "pod/job-R ",
    "(TrainWorker pid=123R) ",
    "(TrainWorker pid=123R, ip=10.0.0.R) ",
    "worker-R  | ",
    "worker_R_1 | ",
    "[R] ",
    "[R]: ",
    "[rankR]: ",
    "[defaultR]:",
    "[1,R]<stdout>:",
    "R: ",
    " R: ",
    "rank R: ",
    "Rank R | ",
    "node1R: ",
    "[nodeR:rankR] ",
    "[12:00:0L] [rankR] ",
    "2026-01-02 03:04:0L,123 [rankR] INFO - ",
    "2026-01-02T03:04:0L.123Z stdout F rank=R ",
    "[2026-01-02 03:04:0L,123][__main__][INFO][R] - ",
    "GPU R: ",
    "LOCAL_RANK: R - ",
    "gpuR> ",
    "<R> ",
    "{R} ",
    "task R | ",
    "slurmstepd[R]: ",
    "R> ",
    "|R| ",
    "job.R.out:",
    "host-0R.cluster.local: ",
];

fn prefix(form: &str, rank: usize, line: usize) -> String {
    form.replace('R', &rank.to_string()).replace('L', &line.to_string())
}

/// Returns the lines of this number of ranks, mixed.
fn log(form: &str, ranks: usize) -> String {
    let line = |(number, line): (usize, &str)| {
        (0..ranks).map(|rank| format!("{}{line}\n", prefix(form, rank, number))).collect::<String>()
    };
    PLAIN.lines().enumerate().map(line).collect()
}

/// Checks that a text is that many times the plain program.
#[track_caller]
fn check(text: &str, count: usize) {
    let (programs, diagnostics) = read(text);
    assert!(!has_errors(&diagnostics), "{diagnostics:?}\n{text}");
    let printed: Vec<String> = programs.iter().map(print).collect();
    assert_eq!(printed, vec![PLAIN; count], "{text}");
    for span in diagnostics.iter().flat_map(|it| &it.labels).map(|(span, _)| span) {
        assert!(text.get(span.start as usize..span.end as usize).is_some());
    }
}

#[test]
fn ranks_are_told_apart_by_the_shape_of_their_prefixes() {
    for form in PREFIXES {
        check(&log(form, 1), 1);
        check(&log(form, 2), 2);
    }
    check(&log("[pod/job-R/main] ", 12), 12);
}

#[test]
fn a_sign_is_before_the_first_line_only() {
    for (sign, end) in
        [("$ ", ""), ("\u{201c}", "\u{201d}"), ("> ", ""), (">>> ", ""), ("'", "'"), ("b'", "'"), ("- ", "")]
    {
        check(&format!("{sign}{}{end}\n", PLAIN.trim_end()), 1);
    }
}

fn json(text: &str) -> String {
    text.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n").replace("->", "-\\u003e")
}

#[test]
fn records_of_json_are_read() {
    let records = |before: &str, behind: &str| -> String {
        PLAIN.lines().map(|it| format!("{before}{}{behind}\n", json(&format!("{it}\n")))).collect()
    };
    check(&records(r#"{"log": ""#, r#"", "stream": "stdout", "time": "2026-01-02T03:04:05Z"}"#), 1);
    check(&records(r#"{"timestamp":"2026-01-02","level":"INFO","message":""#, r#""}"#), 1);
    check(&records(r#"{"textPayload": ""#, r#"", "severity": "DEFAULT"},"#), 1);
    check(&records(r#"{"jsonPayload": {"message": ""#, r#""}, "insertId": "a"}"#), 1);
    check(&format!("{{\"msg\":\"{}\",\"level\":30}}\n", json(PLAIN)), 1);
    check(&format!("[\n{{\"message\":\"{}\"}}\n]\n", json(PLAIN)), 1);
    let pods: String = PLAIN
        .lines()
        .flat_map(|it| [0, 1].map(|pod| format!("{{\"pod\":\"job-{pod}\",\"log\":\"{}\"}}\n", json(it))))
        .collect();
    check(&pods, 2);
}

#[test]
fn escapes_and_quoting_are_undone() {
    check(&PLAIN.replace('_', "\\_").replace('[', "\\[").replace(']', "\\]"), 1);
    check(&format!("'{}'\n", PLAIN.replace('\n', "\\n")), 1);
    check(&format!("b'{}'\n", PLAIN.replace('\n', "\\n")), 1);
    check(&PLAIN.replace('<', "&lt;").replace('>', "&gt;"), 1);
    check(&PLAIN.replace('\n', "\r\n"), 1);
    check(&PLAIN.replace('\n', "\r"), 1);
    check(&PLAIN.lines().map(|it| format!("\u{1b}[32m{it}\u{1b}[0m\n")).collect::<String>(), 1);
    check(&format!("\u{feff}{PLAIN}"), 1);
    check(&format!("```text\n{PLAIN}```\n"), 1);
    for quote in ["> ", ">> ", "> > ", "| ", "# ", "// ", "-- ", "    "] {
        check(&PLAIN.lines().map(|it| format!("{quote}{it}\n")).collect::<String>(), 1);
    }
    check(&format!("Hi,\n\nthis is the dump:\n\n{PLAIN}\nThanks\n"), 1);
    check(&format!("{PLAIN}epoch 1\n{PLAIN}"), 2);
}

#[test]
fn what_is_left_out_is_named() {
    let at = PLAIN.match_indices('\n').nth(1).map_or(0, |it| it.0 + 1);
    let (before, behind) = PLAIN.split_at(at);
    for gap in [
        "[12 lines truncated]",
        "... (12 more lines) ...",
        "[...]",
        "...",
        "\u{2026}",
        "<output truncated>",
        "--More--",
        "# 12 lines omitted",
        "[snip]",
    ] {
        for indent in ["", "    "] {
            let (_, diagnostics) = read(&format!("{before}{indent}{gap}\n{behind}"));
            let found = diagnostics.iter().find(|it| it.code == Code::Truncated);
            let is_named = |it: &Diagnostic| {
                it.message.contains("lines of the program are missing") && it.help.is_some()
            };
            assert!(found.is_some_and(is_named), "{gap}: {diagnostics:?}");
        }
    }
    let (_, diagnostics) = read(before);
    assert!(has_errors(&diagnostics));
}
