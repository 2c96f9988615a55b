//! Programs that grow in statements: operators, loops, depth, pending communications, or views.

use std::fmt::Write as _;

/// Returns a chain of operators, each of which reshards its operand.
pub fn chain(operators: usize) -> String {
    const MESH: &str = "(DeviceMesh{0 1 2 3})";
    let (mut axis, mut domains, mut body) = (0, String::new(), String::new());
    // `spread` is the dimension that is sharded over the devices, if any.
    let mut tensor = |number: usize, spread: Option<usize>| {
        axis += 4;
        let [a, b, outer, inner] = [axis - 4, axis - 3, axis - 2, axis - 1];
        let Some(dim) = spread else { return format!("T{number}_g_float[iS{a}{{8}}, iS{b}{{8}}] {MESH}") };
        let (split, kept) = if dim == 0 { (a, b) } else { (b, a) };
        let _ = writeln!(
            domains,
            "  T{number}: logical(iS{a}{{8}}, iS{b}{{8}}), outer_split(iS{split}{{8}}, 4) -> \
             (ideviceIdx.x{outer}{{4}}, iS{inner}{{2}})"
        );
        let (first, second) = match dim {
            0 => (format!("iS{inner}{{2}}"), format!("iS{kept}{{8}}")),
            _ => (format!("iS{kept}{{8}}"), format!("iS{inner}{{2}}")),
        };
        format!("T{number}_g_float[ideviceIdx.x{outer}{{4}}, {first}, {second}] {MESH}")
    };
    let (input, weight, columns) = (tensor(0, Some(0)), tensor(1, None), tensor(2, Some(1)));
    let mut last = input.clone();
    for at in 0..operators {
        let number = at + 3;
        let out = tensor(number, [None, Some(1), Some(0)][at % 3]);
        let value = match at % 3 {
            // Gathers the rows.
            0 => format!("linear({last},\n              {weight})"),
            // Shards the columns.
            1 => format!("Set( {last} )"),
            // Computes partial sums, which are added and scattered by rows.
            _ => format!("linear({last},\n              {columns})"),
        };
        let _ = writeln!(body, "  {out}\n     = {value}");
        last = out;
    }
    let header = format!("({input}, {weight}, {columns}) -> ({last})");
    format!("%HostIrContainer {{ {header} :\n{body}}} // %HostIrContainer\n\nDomains:\n{domains}")
}

pub(super) fn container(header: &str, body: &str) -> String {
    format!("%HostIrContainer {{ {header} :\n{body}}} // %HostIrContainer\n")
}

/// Returns two chains of equal statements.
pub fn equal(statements: usize) -> String {
    let input = "T0_g_float[iS0{4}]".to_owned();
    let tensor = |number: usize| format!("T{number}_g_float[iS{number}{{4}}]");
    let (mut one, mut two, mut body) = (input.clone(), input.clone(), String::new());
    for at in 0..statements / 2 {
        let (a, b) = (tensor(2 * at + 1), tensor(2 * at + 2));
        let _ = writeln!(body, "  {a} = relu({one})\n  {b} = relu({two})");
        (one, two) = (a, b);
    }
    let out = tensor(statements + 3);
    let _ = writeln!(body, "  {out} = {one} + {two}");
    container(&format!("({input}) -> ({out})"), &body)
}

/// Returns views of one tensor at many indices, used on four streams.
pub fn views(statements: usize) -> String {
    let views = statements / 2;
    let input = format!("T0_g_float[iS0{{{views}}}, iS1{{4}}]");
    let (mut body, mut last) = (String::new(), input.clone());
    for at in 0..views {
        let (view, out) = (2 * at + 2, 2 * at + 3);
        let (view, out) =
            (format!("T{view}_l_float[iS{view}{{4}}]"), format!("T{out}_g_float[iS{out}{{4}}]"));
        let _ = writeln!(body, "  {view} = HirAliasSelect( {input}, axis = iS0{{{views}}}, index = {at} )");
        if at % 3 == 0 {
            let _ = writeln!(body, "  SetCurrentStream(Stream {})", at % 4);
        }
        if at % 5 == 0 {
            let _ = writeln!(body, "  Synchronize(Stream {})", (at + 1) % 4);
        }
        let _ = writeln!(body, "  {out} = relu({view})");
        last = out;
    }
    container(&format!("({input}) -> ({last})"), &body)
}

/// Returns consecutive loops of four iterations over streams.
pub fn loops(loops: usize) -> String {
    let (input, out) = ("T0_g_float[iS0{4}, iS1{4}]", "T1_g_float[iS2{4}, iS3{4}]");
    let mut body =
        format!("  {out} = ALLOCATE(mem_type=global, zero_init=false)\n  Stream s0 = GetCurrentStream()\n");
    for at in 0..loops {
        let (from, to, index) = (2 * at + 2, 2 * at + 3, at + 100);
        let from = format!("T{from}_l_float[iS{}{{4}}]", from + 10);
        let to = format!("T{to}_l_float[iS{}{{4}}]", to + 10);
        let _ = write!(
            body,
            "  FOR i{index} from 0 to 4:\n    SetCurrentStream(Stream ( i{index} % 2 ))\n    Synchronize(Stream s0)\n    \
             {from} = HirAliasSelect( {input}, axis = iS0{{4}}, index = i{index} )\n    \
             {to} = HirAliasSelect( {out}, axis = iS2{{4}}, index = i{index} )\n    {to} = relu({from})\n    \
             SetCurrentStream(Stream s0)\n    Synchronize(Stream ( i{index} % 2 ))\n"
        );
    }
    container(&format!("({input}) -> ({out})"), &body)
}

/// Returns communications whose results are not used, so that each Wait may sink to the end.
pub fn waits(statements: usize) -> String {
    const MESH: &str = "(DeviceMesh{0 1})";
    let input = format!("T0_g_float[iS0{{4}}] {MESH}");
    let (mut body, mut last) = (String::new(), input.clone());
    for at in 0..statements / 3 {
        let number = at + 1;
        last = format!("T{number}_g_float[iS{number}{{4}}] {MESH}");
        let _ = writeln!(
            body,
            "  {last} = ALLOCATE(mem_type=global, zero_init=false)\n  Communication {at} (type=Allreduce, team=(0 1), \
             red_op=SUM, input={input}, output={last}, backend=NCCL)\n  Wait(Communication {at})"
        );
    }
    container(&format!("({input}) -> ({last})"), &body)
}

/// Returns communications that are all pending when the first Wait comes, and computations between the Waits.
pub fn pending(statements: usize) -> String {
    posts_and_waits(statements / 4, |post, wait, compute| {
        let waits: Vec<String> = wait.iter().zip(compute).map(|(wait, it)| format!("{wait}{it}")).collect();
        post.concat() + &waits.concat()
    })
}

/// Returns communications behind computations before which they can be posted.
pub fn posted_late(statements: usize) -> String {
    posts_and_waits(statements / 4, |post, wait, compute| compute.concat() + &post.concat() + &wait.concat())
}

/// Returns a program of posts with their allocations, Waits and computations, in the order that `body` gives them.
fn posts_and_waits(count: usize, body: fn(&[String], &[String], &[String]) -> String) -> String {
    const MESH: &str = "(DeviceMesh{0 1})";
    let tensor = |at: usize| format!("T{at}_g_float[iS{at}{{4}}] {MESH}");
    let input = tensor(0);
    let (mut post, mut wait, mut compute) = (Vec::new(), Vec::new(), Vec::new());
    for at in 1..=count {
        let (sum, own, last) = (tensor(at), tensor(count + at), if at == 1 { 0 } else { count + at - 1 });
        post.push(format!(
            "  {sum} = ALLOCATE(mem_type=global, zero_init=false)\n  Communication {at} (type=Allreduce, team=(0 1), \
             red_op=SUM, input={input}, output={sum}, backend=NCCL)\n"
        ));
        wait.push(format!("  Wait(Communication {at})\n"));
        compute.push(format!("  {own} = relu({})\n", tensor(last)));
    }
    let outputs = format!("{}, {}", tensor(count), tensor(2 * count));
    container(&format!("({input}) -> ({outputs})"), &body(&post, &wait, &compute))
}

/// Returns a chain of views, each of the one before it.
pub fn views_of_views(views: usize) -> String {
    let tensor = |at: usize| format!("T{at}_g_float[iS{}{{4}}, iS{}{{4}}]", 2 * at, 2 * at + 1);
    let mut body = String::new();
    for at in 0..views {
        let _ = writeln!(body, "  {}\n     = reshape({})", tensor(at + 1), tensor(at));
    }
    let _ = writeln!(body, "  {} = relu({})", tensor(views + 1), tensor(views));
    container(&format!("({}) -> ({})", tensor(0), tensor(views + 1)), &body)
}

/// Returns loops that share memory handles in each iteration.
pub fn exchanges(statements: usize) -> String {
    const MESH: &str = "(DeviceMesh{0 1})";
    const PEER: &str = "( ( rank + 1 ) % 2 )";
    let input = format!("T0_g_float[iS0{{4}}] {MESH}");
    let (mut body, mut last) = (String::new(), input.clone());
    for at in 1..=statements / 6 {
        last = format!("T{at}_g_float[iS{at}{{4}}] {MESH}");
        let transfers = [("send", &input), ("recv", &last)].map(|(kind, buffer)| {
            let number = 2 * at + usize::from(kind == "recv");
            format!("P2PCommunication {number} (type={kind}, buffer={buffer}, peer={PEER}, backend=CUDA)")
        });
        let [send, receive] = &transfers;
        let _ = write!(
            body,
            "  {last} = ALLOCATE(mem_type=global, zero_init=false)\n  FOR i{at} from 0 to 4:\n    \
             ShareMemHandles({send}, {receive})\n    {send}\n    {receive}\n    Wait(P2PCommunication {})\n    \
             Wait(P2PCommunication {})\n",
            2 * at + 1,
            2 * at
        );
    }
    container(&format!("({input}) -> ({last})"), &body)
}

/// Returns nested loops, with a choice of stream and a join in each.
pub fn depth(depth: usize) -> String {
    let (input, out) = ("T0_g_float[iS0{4}]", "T1_g_float[iS2{4}]");
    let mut body = format!("  {out} = ALLOCATE(mem_type=global, zero_init=false)\n");
    for at in 0..depth {
        let (indent, stream, other) = ("  ".repeat(at + 1), at % 3, (at + 1) % 3);
        let _ = writeln!(
            body,
            "{indent}FOR i{} from 0 to 1:\n{indent}  SetCurrentStream(Stream {stream})\n{indent}  Synchronize(Stream {other})",
            at + 100
        );
    }
    let _ = writeln!(body, "{}{out} = relu({input})", "  ".repeat(depth + 1));
    container(&format!("({input}) -> ({out})"), &body)
}
