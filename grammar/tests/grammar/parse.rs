//! Tests the parser on small programs in the dialects of the dumps: compares the trees and the diagnostics.

mod faults;

use grammar::{
    ast::{Arg, Expr, ExprKind, For, If, Post, Range, Stmt, StmtKind, Trailer},
    codes::Code,
    diagnostic::has_errors,
    parse::{parse, parse_scalar},
};

/// Returns an expression as text that shows its structure.
pub fn show(expr: &Expr<'_>) -> String {
    let list = |items: &[Expr<'_>]| items.iter().map(show).collect::<Vec<_>>().join(" ");
    match &expr.kind {
        ExprKind::Int(n) => n.to_string(),
        ExprKind::Float(text) | ExprKind::Word(text) => (*text).to_string(),
        ExprKind::Tensor(text) => text.split('_').next().unwrap_or("").to_string(),
        ExprKind::Axis(text) => (*text).to_string(),
        ExprKind::Stream(id) => format!("<{}>", show(id)),
        ExprKind::Prefix(op, x) => format!("({op} {})", show(x)),
        ExprKind::Infix(op, x, y) => format!("({op} {} {})", show(x), show(y)),
        ExprKind::Call { name, number, args } => {
            let number = number.map_or(String::new(), |it| format!("#{it}"));
            format!("{}{number}({})", name.text, args.iter().map(show_arg).collect::<Vec<_>>().join(" "))
        }
        ExprKind::Paren(x) => show(x),
        ExprKind::Team(ranks) => format!("team{ranks:?}"),
        ExprKind::Braces(items) => format!("{{{}}}", list(items)),
    }
}

fn show_arg(arg: &Arg<'_>) -> String {
    let key = arg.key.map_or(String::new(), |it| format!("{}=", it.text));
    format!("{key}{}", show(&arg.value))
}

/// Appends the statements to `res`, one per line, with bodies indented.
fn show_body(body: &[Stmt<'_>], depth: usize, res: &mut Vec<String>) {
    let indent = "  ".repeat(depth);
    for stmt in body {
        match &stmt.kind {
            StmtKind::For(it) => {
                let For { index, range, body } = &**it;
                let range = match range {
                    Range::Axis(axis) => show(axis),
                    Range::Bounds(from, to) => format!("{}..{}", show(from), show(to)),
                };
                res.push(format!("{indent}for {} {range}", index.text));
                show_body(body, depth + 1, res);
            }
            StmtKind::If(it) => {
                let If { kind, cond, then, other } = &**it;
                res.push(format!("{indent}if {} {}", kind.text, show(cond)));
                show_body(then, depth + 1, res);
                if !other.is_empty() {
                    res.push(format!("{indent}else"));
                    show_body(other, depth + 1, res);
                }
            }
            StmtKind::Assign { outs, value } => {
                let outs: Vec<String> = outs.iter().map(show).collect();
                res.push(format!("{indent}{} = {}", outs.join(" "), show(value)));
            }
            StmtKind::Group { name, members, .. } => {
                let members = members.iter().map(|(out, value)| format!("{} = {}", show(out), show(value)));
                res.push(format!("{indent}{} {}", name.text, members.collect::<Vec<_>>().join(" ")));
            }
            StmtKind::Post(it) => {
                let Post { inputs, outputs, .. } = &**it;
                let list = |it: &[Expr<'_>]| it.iter().map(show).collect::<Vec<_>>().join(" ");
                res.push(format!("{indent}post {} -> {}", list(inputs), list(outputs)));
            }
            StmtKind::Wait(_) => res.push(format!("{indent}await")),
            StmtKind::Call(call) => res.push(format!("{indent}{}", show(call))),
        }
    }
}

fn wrap(body: &str) -> String {
    format!(
        "%HostIrContainer {{ (T0_g_float[iS0{{4}}]) -> (T1_g_float[iS1{{4}}]) :\n{body}}} // %HostIrContainer\n"
    )
}

#[track_caller]
fn check_text(text: &str, expected: &str) {
    let (file, diagnostics) = parse(text);
    assert_eq!(diagnostics, [], "{text}");
    let mut lines = Vec::new();
    show_body(&file.containers[0].body, 0, &mut lines);
    assert_eq!(lines.join("\n"), expected.trim_matches('\n'));
}

#[track_caller]
fn check(body: &str, expected: &str) {
    check_text(&wrap(body), expected);
}

/// Checks the diagnostics of `text`. Each is a line with its code, the text that it points at, its message
/// and its label.
#[track_caller]
fn check_errors(text: &str, expected: &[&str]) {
    let (_, diagnostics) = parse(text);
    let found: Vec<String> = diagnostics
        .iter()
        .map(|it| {
            let (span, label) = &it.labels[0];
            format!("{} `{}`: {}; {label}", it.code.text(), span.text(text), it.message)
        })
        .collect();
    assert_eq!(found, expected, "{text}");
}

#[track_caller]
fn check_scalar(text: &str, expected: &str) {
    match parse_scalar(text) {
        Ok(expr) => assert_eq!(show(&expr), expected),
        Err(errors) => assert_eq!(errors, [], "{text}"),
    }
}

#[test]
fn scalars_follow_c_precedence() {
    check_scalar("(rank+streamIdx)%8", "(% (+ rank streamIdx) 8)");
    check_scalar("a || b && c | d ^ e & f == g", "(|| a (&& b (| c (^ d (& e (== f g))))))");
    check_scalar("a < b << 1 + c * 2", "(< a (<< b (+ 1 (* c 2))))");
    check_scalar("a - b - c", "(- (- a b) c)");
    check_scalar("( i0 + -1 )", "(+ i0 -1)");
    check_scalar("-9223372036854775808", "-9223372036854775808");
    check_scalar("( -( fmax(0, i3) ) )", "(- fmax(0 i3))");
    check_scalar("!b1 && ~i2 != 0", "(&& (! b1) (!= (~ i2) 0))");
    check_scalar("where(( i7 < 0 ), ( i7 + 7 ), i7)", "where((< i7 0) (+ i7 7) i7)");
    check_scalar("( (nvfuser_index_t)(5) ) + (double)(i3)", "(+ __to_index(5) __to_double(i3))");
    check_scalar("( (( (( getMetaData(T1) )).logical_size ))[0] )", "[](.logical_size(getMetaData(T1)) 0)");
    check_scalar("float(-inf)", "float((- inf))");
    check_scalar("std::complex<float>((0,1))", "std::complex<float>({0 1})");
    check_scalar("1e-05 + 1.5", "(+ 1e-05 1.5)");
    check_scalar("blockDim.x", "blockDim.x");
}

#[test]
fn scalars_with_faults() {
    let errors = |text: &str| {
        parse_scalar(text).err().unwrap_or_default().iter().map(|it| it.code).collect::<Vec<_>>()
    };
    assert_eq!(errors(""), [Code::Syntax]);
    assert_eq!(errors("(a + "), [Code::Syntax]);
    assert_eq!(errors("9223372036854775808"), [Code::BadNumber]);
    assert_eq!(errors("a $ b").first(), Some(&Code::BadToken));
    assert_eq!(errors(&"(".repeat(100_000)), [Code::Syntax]);
    assert_eq!(errors(&"-".repeat(100_000)), [Code::Syntax]);
    assert_eq!(errors(&"1+".repeat(100_000)), [Code::Syntax]);
    assert_eq!(errors(&format!("a{}", "[0]".repeat(100_000))), [Code::Syntax]);
}

#[test]
fn keyword_and_call_style() {
    check(
        "  GetCurrentStream into Stream 0\n  SetCurrentStream to Stream ( i5 % 4 )\n  Synchronize Stream 0x1f\n  \
         Stream 0x2a = GetCurrentStream()\n  SetCurrentStream(Stream i5)\n  Synchronize(Stream 0x2a)\n  \
         StartCoalescing\n  EndCoalescing\n  EndCoalescing 35\n  Wait Communication 35\n  Wait(Communication 35)\n",
        "
<0> = GetCurrentStream()
SetCurrentStream(<(% i5 4)>)
Synchronize(<0x1f>)
<0x2a> = GetCurrentStream()
SetCurrentStream(<i5>)
Synchronize(<0x2a>)
StartCoalescing()
EndCoalescing()
EndCoalescing#35()
Wait(Communication#35())
Wait(Communication#35())",
    );
}

#[test]
fn communications_and_memory() {
    check(
        "  T3_g[ iS0{4} ] (DeviceMesh{0, 1, }) = ALLOCATE(buffer=T3_g[ iS0{4} ] (DeviceMesh{0, 1, }), \
         mem_type=global, size=( i0 * 2 ), zero_init=false)\n      .alias=T2_g[ iS0{4} ]\n  \
         Communication 3 (type=Broadcast, team=(1 0), root=0, Input=T1_l[ iS1{4} ], Output=T2_l[ iS2{4} ])\n  \
         CollectivePermute 82 (team=(0), send_peer=( ( 1 + ( 0 - i140 ) ) % 1 ), input=T0_g[ iS0{4} ])\n  \
         Dispatch 4 (num_experts=8, in=T0_g[ iS0{4} ], out=T1_g[ iS1{4} ])\n  Deallocate {\n    T0_g[ iS0{4} ]\n  }\n  \
         PostOnStream (HostUnit5, Inputs:{T0_g[ iS0{4} ], i3, }, Outputs:{T1_g[ iS1{4} ], })\n  \
         LaunchKernel(\n    Group ID: 0,\n    Inputs: {T0_g[ iS0{4} ]},\n    Outputs: {T1_g[ iS1{4} ]},\n  )\n",
        "
T3 = ALLOCATE(buffer=T3 mem_type=global size=(* i0 2) zero_init=false .alias=T2)
Communication#3(type=Broadcast team=team[1, 0] root=0 Input=T1 Output=T2)
CollectivePermute#82(team=0 send_peer=(% (+ 1 (- 0 i140)) 1) input=T0)
Dispatch#4(num_experts=8 in=T0 out=T1)
Deallocate(T0)
PostOnStream(HostUnit5 Inputs={T0 i3} Outputs={T1})
LaunchKernel(Group ID=0 Inputs={T0} Outputs={T1})",
    );
}

#[test]
fn operators() {
    check(
        "  T2_g_float[iS2{4}]\n     = T0_g_float[iS0{4}]\n     + T1_g_float[iS1{4}];\n  T3_g_float[iS3{4}]\n     \
         = relu(T2_g_float[iS2{4}]);\n  i84 = i82 % 8;\n  b16 = i7 < 0;\n  ( T4_g_float[iS0{4}], T5_g_int64_t[iS0{4}] ) \
         = topk( T0_g_float[iS0{4}], 2, dim = 0, largest = True )\n  T6_g[iS0{4}], T7_g[iS0{4}] = \
         GroupedMmaOp(mat1=T0_g[iS0{4}], mat2=T1_g[iS1{4}])\n(T8_g[iS0{4}],\n T9_g[iS0{4}])\n = \
         block_quantize(T0_g[iS0{4}])\n  T2_g[iS0{4}],\n     = embedding(T0_g[iS0{4}],\n       T1_g[iS1{4}])\n",
        "
T2 = (+ T0 T1)
T3 = relu(T2)
i84 = (% i82 8)
b16 = (< i7 0)
T4 T5 = topk(T0 2 dim=0 largest=True)
T6 T7 = GroupedMmaOp(mat1=T0 mat2=T1)
T8 T9 = block_quantize(T0)
T2 = embedding(T0 T1)",
    );
    check(
        "  T2_l[ iS0{4} ](Avg),\n  T3_l[ iS0{4} ](Var),\n  T4_l[ iS0{4} ](Count)\n   = Welford ( \
         T1_g[ iS0{4} ](Avg), \n    allreduce = false )\n  T5_l[ rS0{4} ]\n     = reduction( T1_l[ iS0{4} ], op = add, \
         initial value = float(0), allreduce = false )\n  T6_l[ iS0{4} ]\n     = slice( T1_l[ iS0{4} ], \
         { {i28, i38, 1} {0, i2, 1} } )\n  T7_l[ iS0{4} ]\n    = broadcast( T1_l[ iS0{4} ], flags = {true, false} )\n",
        "
T2 T3 T4 = Welford(T1 allreduce=false)
T5 = reduction(T1 op=add initial value=float(0) allreduce=false)
T6 = slice(T1 {{i28 i38 1} {0 i2 1}})
T7 = broadcast(T1 flags={true false})",
    );
    check(
        "  GroupedWelford(\n    T2_l[ iS0{4} ] (Avg),\n    T3_l[ iS0{4} ] (Var),\n    T4_l[ iS0{4} ] (Count)\n     = Welford ( \
         T1_g[ iS0{4} ] (Avg),\n      0 (Var),\n      1 (Count)\n      initial value =\n        0 (Avg),\n        \
         0 (Var),\n        0 (Count) )\n    T6_l[ iS0{4} ] (Avg),\n    T7_l[ iS0{4} ] (Var),\n    T8_l[ iS0{4} ] \
         (Count)\n     = Welford ( T2_l[ iS0{4} ] (Avg),\n      T3_l[ iS0{4} ] (Var),\n      T4_l[ iS0{4} ] (Count)\n      \
         initial value =\n        0 (Avg),\n        0 (Var),\n        0 (Count) )\n    allreduce = true )\n  \
         T7_l[ iS0{4} ]\n    = relu(T1_l[ iS0{4} ])\n",
        "
T2 T3 T4 = Welford(T1 allreduce=true)
T6 T7 T8 = Welford(T2 T3 T4 allreduce=true)
T7 = relu(T1)",
    );
}

#[test]
fn left_out_commas() {
    check(
        "  T5_g[iS0{4}],\n  T6_g[iS0{4}],\n  T7_g[iS0{4}],\n  T8_g[iS0{4}]\n     = sdpa(T0_g[iS0{4}]\n          \
         T1_g[iS1{4}]\n          T2_g[iS1{4}]\n          dropout_p = double(0)\n          is_causal=true\n          \
         scale=double(1.5))\n",
        "T5 T6 T7 T8 = sdpa(T0 T1 T2 dropout_p=double(0) is_causal=true scale=double(1.5))",
    );
}

#[test]
fn nesting_by_column() {
    check(
        "  FOR i5 in istreamIdx3{8}:\n    IF Manual ( i5 == rank ):\n    ELSE:\n      Wait Communication 1\n    \
         Wait Communication 2\n  FOR i6 from 0 to ( i3 - 1 ):\n  Wait Communication 3\n",
        "
for i5 istreamIdx3{8}
  if Manual (== i5 rank)
  else
    Wait(Communication#1())
  Wait(Communication#2())
for i6 0..(- i3 1)
Wait(Communication#3())",
    );
}

#[test]
fn statements_joined_by_a_reflow() {
    check_text(
        "%HostIrContainer { (T0_g_float[iS3{3}]\n(DeviceMesh{0})) -> (T1_g_float[iS5{3}] (DeviceMesh{0}))\n:\n  \
         T1_g_float[iS5{3}] (DeviceMesh{0}) =\n  ALLOCATE(mem_type=global,\n  zero_init=false) Stream\n  0x281a6c60 = \
         GetCurrentStream() FOR i140 from 0 to 1:\n    SetCurrentStream(Stream i140) Wait(Communication 82)\n  \
         SetCurrentStream(Stream 0x281a6c60)\n} // %HostIrContainer\n",
        "
T1 = ALLOCATE(mem_type=global zero_init=false)
<0x281a6c60> = GetCurrentStream()
for i140 0..1
  SetCurrentStream(<i140>)
  Wait(Communication#82())
SetCurrentStream(<0x281a6c60>)",
    );
}

#[test]
fn the_list_without_a_parenthesis() {
    let expected = "
ShareMemHandles(P2PCommunication#37(type=recv peer=i84) P2PCommunication#38(type=send peer=i90))
P2PCommunication#38(type=send peer=i90)
Wait(Communication#38())";
    let posts = "P2PCommunication 37 (type=recv, peer=i84), P2PCommunication 38 (type=send, peer=i90)";
    let rest = "  P2PCommunication 38 (type=send, peer=i90)\n  Wait Communication 38\n";
    check(&format!("  ShareMemHandles({posts},\n{rest}"), expected);
    check(&format!("  ShareMemHandles({posts}, \n{rest}"), expected);
    check(&format!("  ShareMemHandles({posts})\n{rest}"), expected);
    check(&format!("  ShareMemHandles({posts}, {}", rest.trim_start()), expected);
    check(&format!("  ShareMemHandles({}, \n{rest}", posts.replace("), ", "),\n   ")), expected);
}

#[test]
fn options_units_and_trailers() {
    let text = "noise T0_g[ “ {\n%options numberOfStreams=4, p2p_protocol=put\n%HostIrContainer { () -> () :\n  \
                PostOnStream (HostUnit7, Inputs:{}, Outputs:{})\n\nHostUnit7: Inputs={T0_g[iS0{4}], } -> \
                Outputs={T1_g[iS1{4}], }Inputs:\n  T0_g[iS0{4}]\nOutputs:\n  T1_g[iS1{4}]\n\n%kernel {\n\
                T1_g[iS1{4}] ca_pos( 1 )\n   = Set( T0_g[iS0{4}] ca_pos( 1 ) )\n} // %kernel\n\nHostUnit5: [...]\n\
                } // %HostIrContainer\n\nIndex definitions:\n  i84 = i82 % 8;\n  i82 = rank + streamIdx;\n\n\
                Domains:\n  T3: logical(iS17{i0}, iS18{2}), outer_split(iS17{i0}, 3) -> (istreamIdx20{3}, \
                iS21{( ceilDiv(i0, 3) )}), allocation(istreamIdx20{3})\n  T4: logical(iS1{4})\n\nmore noise }\n\
                %HostIrContainer { () -> () :\n} // %HostIrContainer\n";
    let (file, diagnostics) = parse(text);
    assert_eq!(diagnostics, []);
    let [first, second] = file.containers.as_slice() else { unreachable!("two containers") };
    assert_eq!(
        first.options.iter().map(show_arg).collect::<Vec<_>>(),
        ["numberOfStreams=4", "p2p_protocol=put"]
    );
    assert_eq!(first.span.text(text), "%HostIrContainer { () -> () :");
    let [seven, five] = first.units.as_slice() else { unreachable!("two units") };
    assert_eq!(seven.name.text, "HostUnit7");
    let lists = seven.lists.iter().map(|it| (it.key.text, it.values.len()));
    assert_eq!(lists.collect::<Vec<_>>(), [("Inputs", 1), ("Outputs", 1), ("Inputs", 1), ("Outputs", 1)]);
    assert_eq!(seven.body.as_ref().map(Vec::len), Some(1));
    assert_eq!((five.name.text, five.body.is_none()), ("HostUnit5", true));
    let [Trailer::Definitions(definitions), Trailer::Domains(domains)] = first.trailers.as_slice() else {
        unreachable!("two trailers")
    };
    assert_eq!(definitions.len(), 2);
    assert_eq!(domains.iter().map(|it| it.tensor.text).collect::<Vec<_>>(), ["T3", "T4"]);
    let clauses: Vec<_> = domains[0].clauses.iter().map(|(call, to)| (show(call), to.len())).collect();
    assert_eq!(clauses[1], ("outer_split(iS17{i0} 3)".to_string(), 2));
    assert!(second.body.is_empty() && second.trailers.is_empty());
}
