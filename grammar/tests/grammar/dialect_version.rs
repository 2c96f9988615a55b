//! Tests that one program has the same canonical text in the spelling of each dialect version.

use grammar::{print, read};

/// Checks that `text` reads as the program `expected` with these diagnostic codes, and that `expected` reads
/// back as itself without diagnostics.
#[track_caller]
fn check(text: &str, codes: &[&str], expected: &str) {
    let (programs, diagnostics) = read(text);
    let found: Vec<_> = diagnostics.iter().map(|it| it.code.text()).collect();
    assert_eq!(found, codes, "{diagnostics:?}\n{text}");
    let printed: String = programs.iter().map(print).collect();
    assert_eq!(printed, expected, "\n{text}");
    let (programs, left) = read(&grammar::fix(text));
    assert_eq!(programs.iter().map(print).collect::<String>(), printed, "fixed");
    assert!(left.is_empty(), "{left:?}");
    let (programs, diagnostics) = read(&printed);
    assert!(diagnostics.is_empty(), "{diagnostics:?}\n{printed}");
    assert_eq!(programs.iter().map(print).collect::<String>(), printed);
}

const GATHER: &str = "\
%HostIrContainer { (T0_g[ideviceIdx.x0{4}, iS1{2}] (DeviceMesh{0 1 2 3})) -> (T2_g[iS2{4}, iS3{2}] (DeviceMesh{0})) :
  PostOnStream (HostUnit0, Inputs:{T0_g[ideviceIdx.x0{4}, iS1{2}] (DeviceMesh{0 1 2 3})}, Outputs:{T1_g[ideviceIdx.x4{4}, iS5{2}] (DeviceMesh{0 1 2 3})})
  Communication 1 (type=Gather, team=(0 1 2 3), root=0, input=T1_g[ideviceIdx.x4{4}, iS5{2}] (DeviceMesh{0 1 2 3}), output=T2_g[iS2{4}, iS3{2}] (DeviceMesh{0}))
  Wait(Communication 1)

HostUnit0: Inputs={T0_g[ideviceIdx.x0{4}, iS1{2}] (DeviceMesh{0 1 2 3})} -> Outputs={T1_g[ideviceIdx.x4{4}, iS5{2}] (DeviceMesh{0 1 2 3})}
%kernel {
T1_g[ideviceIdx.x4{4}, iS5{2}] (DeviceMesh{0 1 2 3})
   = relu(T0_g[ideviceIdx.x0{4}, iS1{2}] (DeviceMesh{0 1 2 3}));
} // %kernel
} // %HostIrContainer
";

/// Returns `text` with the inner blanks of 2024.
fn spaced(text: &str) -> String {
    let text = text.replace("_g[", "_g[ ").replace("_l[", "_l[ ");
    text.replace("}] (", "} ] (")
}

#[test]
fn words_of_may_2024() {
    let text = "\
%HostIrContainer {

HOST FUSION (T0_g[ ideviceIdx.x0{4}, iS1{2} ] (DeviceMesh{0, 1, 2, 3, })) -> (T2_g[ iS2{4}, iS3{2} ] (DeviceMesh{0, })) :
  PostOnStream the operation :{
%kernel {
T1_g[ ideviceIdx.x4{4}, iS5{2} ] (DeviceMesh{0, 1, 2, 3, })
   = relu(T0_g[ ideviceIdx.x0{4}, iS1{2} ] (DeviceMesh{0, 1, 2, 3, }));
}

}, taking inputs: {      T0_g      [ ideviceIdx.x0{4}, iS1{2} ] (DeviceMesh{0, 1, 2, 3, })
  } and outputs: {
      T1_g      [ ideviceIdx.x4{4}, iS5{2} ] (DeviceMesh{0, 1, 2, 3, })
  }
  PostOnStream the operation :{
  Communication Gather: {
    root: 0,
    team: 0 1 2 3,
  }
}, taking inputs: {      T1_g      [ ideviceIdx.x4{4}, iS5{2} ] (DeviceMesh{0, 1, 2, 3, })
  } and outputs: {
      T2_g      [ iS2{4}, iS3{2} ] (DeviceMesh{0, })
  }
  Wait the communication :{
  Communication Gather: {
    root: 0,
    team: {0, 1, 2, 3, }
  }
  }
END.
";
    check(text, &[], GATHER);
    let execute = text
        .replace("  PostOnStream the operation :{\n%kernel {\nT1_g[ ideviceIdx.x4{4}, iS5{2} ] (DeviceMesh{0, 1, 2, 3, })\n   = relu(T0_g[ ideviceIdx.x0{4}, iS1{2} ] (DeviceMesh{0, 1, 2, 3, }));\n}\n\n}, taking inputs: {", "  Execute the following Fusion, taking inputs :{\n")
        .replacen("(DeviceMesh{0, 1, 2, 3, })\n  }\n  PostOnStream", "(DeviceMesh{0, 1, 2, 3, })\n  }. Fusion to execute:{\n%kernel {\nT1_g[ ideviceIdx.x4{4}, iS5{2} ] (DeviceMesh{0, 1, 2, 3, })\n   = relu(T0_g[ ideviceIdx.x0{4}, iS1{2} ] (DeviceMesh{0, 1, 2, 3, }));\n}\n\n  }\n  PostOnStream", 1);
    assert_ne!(execute, text);
    check(&execute, &[], GATHER);
}

#[test]
fn host_irs_of_july_2024() {
    let text = spaced(GATHER)
        .replace("%HostIrContainer { (", "%HostIrContainer {\n\nHOST IRS: (")
        .replace("input=", "Input=")
        .replace("output=", "Output=")
        .replace("Wait(Communication 1)", "Wait Communication 1")
        .replace("} // %kernel\n} // %HostIrContainer", "}\nEND.");
    check(&text, &[], GATHER);
    check(text.trim_start_matches("%HostIrContainer {\n\n"), &[], GATHER);
}

#[test]
fn one_line_communications_of_2024() {
    let lower = GATHER.replace("Wait(Communication 1)", "Wait Communication 1\n");
    check(&lower, &[], GATHER);
    check(&spaced(&lower).replace("input=", "Input=").replace("output=", "Output="), &[], GATHER);
    check(&lower.replace("(DeviceMesh{0 1 2 3})}\n%kernel", "(DeviceMesh{0 1 2 3}), }Inputs:\n  T0_g[ideviceIdx.x0{4}, iS1{2}] (DeviceMesh{0 1 2 3})\nOutputs:\n  T1_g[ideviceIdx.x4{4}, iS5{2}] (DeviceMesh{0 1 2 3})\n\n%kernel"), &[], GATHER);
    check(&GATHER.replace('\n', " "), &[], GATHER);
}

const STREAMS: &str = "\
%HostIrContainer { (T0_g_float[iS0{8}, iS1{2}]) -> (T1_g_float[istreamIdx2{8}, iS3{2}]) :
  T1_g_float[istreamIdx2{8}, iS3{2}] = ALLOCATE(buffer=T1_g_float[istreamIdx2{8}, iS3{2}], mem_type=global, size=16, zero_init=false, resets_to_zero=false)
  Stream s0 = GetCurrentStream()
  FOR streamIdx in istreamIdx2{8}:
    SetCurrentStream(Stream ( streamIdx % numberOfStreams ))
    Synchronize(Stream s0)
    T2_l_float[iS4{2}]
       = HirAliasSelect( T0_g_float[iS0{8}, iS1{2}], axis = iS0{8}, index = streamIdx )
    T3_l_float[iS5{2}]
       = HirAliasSelect( T1_g_float[istreamIdx2{8}, iS3{2}], axis = istreamIdx2{8}, index = streamIdx )
    T3_l_float[iS5{2}]
       = Set( T2_l_float[iS4{2}], cache_op=Streaming )
    SetCurrentStream(Stream s0)
    Synchronize(Stream ( streamIdx % numberOfStreams ))
} // %HostIrContainer
";

fn keywords(text: &str, stream: &str) -> String {
    text.replace("Stream s0 = GetCurrentStream()", &format!("GetCurrentStream into Stream {stream}"))
        .replace("SetCurrentStream(Stream s0)", &format!("SetCurrentStream to Stream {stream}"))
        .replace("Synchronize(Stream s0)", &format!("Synchronize Stream {stream}"))
        .replace(
            "SetCurrentStream(Stream ( streamIdx % numberOfStreams ))",
            "SetCurrentStream to Stream ( streamIdx % numberOfStreams )",
        )
        .replace(
            "Synchronize(Stream ( streamIdx % numberOfStreams ))",
            "Synchronize Stream ( streamIdx % numberOfStreams )",
        )
}

#[test]
fn streams_of_every_year() {
    check(STREAMS, &[], STREAMS);
    check(&STREAMS.replace("Stream s0", "Stream 0x174e5c80"), &[], STREAMS);
    for stream in ["0", "0x174e5c80", "3"] {
        check(&keywords(STREAMS, stream), &[], STREAMS);
        check(&keywords(STREAMS, stream).replace("streamIdx", "StreamIdx"), &[], STREAMS);
    }
    check(&keywords(STREAMS, "0").replace("streamIdx2{", "Stream2{"), &[], STREAMS);
}

fn broadcast(options: &str, root: &str, wait: &str) -> String {
    let (a, b) = ("T0_g_float[iS0{8}] (DeviceMesh{0})", "T1_g_float[iS1{8}] (DeviceMesh{1})");
    format!(
        "{options}%HostIrContainer {{ ({a}) -> ({b}) :\n  Communication 1 (type=Broadcast, team=(1 0), root={root}, \
         input={a}, output={b}, backend=NCCL)\n  {wait}\n}} // %HostIrContainer\n"
    )
}

#[test]
fn roots_that_count_devices() {
    let (old, new) = ("Wait Communication 1", "Wait(Communication 1)");
    let canonical = broadcast("%options roots=team\n", "1", new);
    check(&broadcast("", "0", old), &[], &canonical);
    check(&broadcast("", "1", new), &["lossy-root"], &canonical);
    check(&canonical, &[], &canonical);
    let team = |text: String| text.replace("(1 0)", "(0 1)");
    check(&team(broadcast("", "0", old)), &[], &team(broadcast("", "0", new)));
    // Only one interpretation is possible.
    let far = |text: String| {
        text.replace("(1 0)", "(2 3)").replace("Mesh{0}", "Mesh{3}").replace("Mesh{1}", "Mesh{2}")
    };
    let canonical = far(broadcast("%options roots=team\n", "1", new));
    check(&far(broadcast("", "3", new)), &[], &canonical.replace("%options roots=team\n", ""));
}

#[test]
fn extrema_that_were_renamed() {
    let text = |name: &str, wait: &str, axis: &str| {
        format!(
            "%HostIrContainer {{ (T0_g_float[iS0{{( {name}(4, i3) )}}], T2_g_float[iS2{{4}}]) -> (T1_g_float[{axis}1{{4}}]) :\n  \
             {wait}\n  T1_g_float[{axis}1{{4}}]\n     = {name}(T2_g_float[iS2{{4}}], T2_g_float[iS2{{4}}]);\n}} // %HostIrContainer\n"
        )
    };
    let new = "Synchronize(Stream 1)";
    let canonical = text("max", new, "istreamIdx");
    check(&text("fmax", "Synchronize Stream 1", "iStreamIdx"), &[], &canonical);
    check(&text("fmax", "Synchronize Stream 1", "istreamIdx"), &["lossy-max"], &canonical);
    let kept = canonical.replace("= max(", "= fmax(").replace("   max", "   fmax");
    check(&text("fmax", new, "istreamIdx"), &[], &kept);
}

#[test]
fn brackets_without_a_number() {
    let text = "\
%HostIrContainer { (T0_g_float[iS0{8}]) -> (T1_g_float[iS1{8}]) :
  T1_g_float[iS1{8}] = ALLOCATE(mem_type=global, zero_init=false)
  StartCoalescing
  P2PCommunication 3 (type=recv, buffer=T1_g_float[iS1{8}], peer=i5, backend=NCCL)
  P2PCommunication 4 (type=send, buffer=T0_g_float[iS0{8}], peer=i5, backend=NCCL)
  EndCoalescing 9
  Wait(Communication 9)
} // %HostIrContainer
";
    let old = text
        .replace("EndCoalescing 9", "EndCoalescing")
        .replace("Wait(Communication 9)", "Wait Communication 9");
    check(&old, &[], text);
}

#[test]
fn splits_that_the_text_leaves_open() {
    let text = |tail: &str| {
        format!(
            "%HostIrContainer {{ (T0_g_float[ideviceIdx.x8{{2}}, iS9{{4}}] (DeviceMesh{{0 1}})) -> () :\n}} // %HostIrContainer\n{tail}"
        )
    };
    check(&text(""), &["lossy-domains"], &text("\nDomains:\n  // every tensor has the axes of its text\n"));
    let split = "\nDomains:\n  T0: logical(iS7{8}), outer_split(iS7{8}, 2) -> (ideviceIdx.x8{2}, iS9{4})\n";
    check(&text(split), &[], &text(split));
}

#[test]
fn captured_streams_of_odd_names() {
    for name in ["s(1/0)", "sceilDiv(3, 0)", "s 3(1)", "( i5 % 4 )", "7", "0x1f", "s1", "main"] {
        let text = format!(
            "%HostIrContainer {{ () -> () :\n  GetCurrentStream into Stream {name}\n  Synchronize Stream {name}\n  \
             Stream {name} = GetCurrentStream()\n}} // %HostIrContainer\n"
        );
        let expected = "\
%HostIrContainer { () -> () :
  Stream s0 = GetCurrentStream()
  Synchronize(Stream s0)
  Stream s0 = GetCurrentStream()
} // %HostIrContainer
";
        check(&text, &[], expected);
    }
}

#[test]
fn a_name_of_ours_that_nothing_captures() {
    let text = "\
%HostIrContainer { () -> () :
  Stream s1 = GetCurrentStream()
  SetCurrentStream(Stream s0)
} // %HostIrContainer
";
    // `s0` is not the captured stream, which is named `s0` in canonical text.
    check(text, &[], &text.replace("s0", "s2").replace("s1", "s0").replace("s2", "s1"));
}
