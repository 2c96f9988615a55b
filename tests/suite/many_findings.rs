//! Checks that the checker, `--fix=check` and the reducer take near-linear time in the number of findings, by the counted work
//! (`grammar::arena::visits`) and, loosely, by the time.

use std::time::Duration;

use grammar::{arena, diagnostic::Diagnostic, ir::Program, source::Source, span::LineIndex};
use hir_check::{Checks, FixLimit, check, fix};
use hir_driver::reduce::{
    Candidate, CommandRunner,
    failure_test::{FailureOracle, FailureTest, SameFailure},
    reduce,
};
use hir_driver::session::Session;
use libtest_mimic::{Failed, Trial};

use crate::cpu_time::cpu_time;

/// Maximum growth of the counted work when the number of findings grows by a factor of four: n log n grows by about five, n² by
/// sixteen.
const GROWTH_OF_WORK: u64 = 6;
/// Maximum growth of times, besides `SHORT`.
const GROWTH: u32 = 10;
const SHORT: Duration = Duration::from_millis(200);

/// Makes the text of a program with a number of findings.
type MakeText = fn(usize) -> String;

/// The programs, by name: their texts with a number of findings that one edit each removes.
const PROGRAMS: [(&str, MakeText); 3] =
    [("races", races), ("missing_waits", missing_waits), ("storage", storage)];

/// Returns a trial for each program and each tool.
pub fn trials() -> Vec<Trial> {
    let of_program = |(name, program): (&'static str, MakeText)| {
        [
            Trial::test(format!("many_findings::check_{name}"), move || grows_slowly(250, program, checked)),
            Trial::test(format!("many_findings::fix_{name}"), move || grows_slowly(100, program, fixed)),
            Trial::test(format!("many_findings::reduce_{name}"), move || grows_slowly(100, program, reduced)),
        ]
    };
    let columns = Trial::test("many_findings::none_in_columns", || grows_slowly(500, columns, is_clean));
    let races = Trial::test("many_findings::fix_2000_races", || grows_slowly(500, races, fixed));
    let bound = Trial::test("many_findings::fix_says_that_it_ends_at_a_bound", ends_at_a_bound);
    let beside = Trial::test("many_findings::fix_beside_loops", beside_loops_of_streams);
    PROGRAMS.into_iter().flat_map(of_program).chain([columns, races, bound, beside]).collect()
}

/// Runs a tool on programs with `size` and four times as many findings.
fn grows_slowly(
    size: usize,
    program: MakeText,
    run: fn(&str, usize) -> Result<(), Failed>,
) -> Result<(), Failed> {
    let cost = |size: usize| {
        let text = program(size);
        let (start, visits) = (cpu_time(), arena::visits());
        run(&text, size)?;
        Ok::<_, Failed>((cpu_time() - start, arena::visits() - visits))
    };
    let (one, four) = (cost(size)?, cost(4 * size)?);
    if four.1 <= one.1 * GROWTH_OF_WORK && four.0 <= one.0 * GROWTH + SHORT {
        Ok(())
    } else {
        Err(format!(
            "{size} findings take {:?} and {} visits, {} take {:?} and {}",
            one.0,
            one.1,
            4 * size,
            four.0,
            four.1
        )
        .into())
    }
}

fn planned(program: &mut Program, lines: &LineIndex) -> Option<hir_plan::World> {
    hir_plan::build(program, lines, hir_plan::smallest_world(program)).ok()
}

/// Checks a program, and formats the findings with their helps.
fn diagnostics(text: &str) -> Result<Vec<(usize, Diagnostic)>, Failed> {
    let source = Source::new(String::new(), text.to_owned());
    let mut program = source.programs().0.pop().ok_or("no program")?;
    let plans = planned(&mut program, &source.lines).ok_or("no plan")?;
    Ok(check(&plans, Checks::DEFAULT).diagnostics(&plans, &[source]))
}

/// Checks a program with findings that each have a help.
fn checked(text: &str, size: usize) -> Result<(), Failed> {
    let found = diagnostics(text)?;
    if found.len() >= size && found.iter().all(|it| it.1.help.is_some()) {
        Ok(())
    } else {
        Err(format!("{} findings instead of {size}", found.len()).into())
    }
}

/// Checks a program without faults.
fn is_clean(text: &str, _: usize) -> Result<(), Failed> {
    let found = diagnostics(text)?;
    if found.is_empty() { Ok(()) } else { Err(format!("{found:?}").into()) }
}

/// Fixes a program.
fn fixed(text: &str, size: usize) -> Result<(), Failed> {
    let edits = fix(text, 0, Checks::DEFAULT, &planned).edits.len();
    if edits >= size { Ok(()) } else { Err(format!("{edits} edits for {size} findings").into()) }
}

/// Fixes races that one edit each removes, beside some that need an edit for each stream of a loop: no edit is made that helps only together
/// with another one, unless that one is made, too.
fn beside_loops_of_streams() -> Result<(), Failed> {
    const LOOPS: usize = 5;
    const PLAIN: usize = 20;
    let input = tensor(0, "");
    let (mut outputs, mut body) = (Vec::new(), vec!["Stream s0 = GetCurrentStream()".to_owned()]);
    for at in 0..LOOPS {
        let [a, b] = [1, 2].map(|it| tensor(2 * at + it, ""));
        let reads = ["  SetCurrentStream(Stream i)", "  Synchronize(Stream s0)"].map(str::to_owned);
        let index = format!("i{}", 100 + at);
        body.push(allocate(&a));
        body.push(format!("FOR {index} from 1 to 3:"));
        body.extend(reads.map(|it| it.replace("(Stream i)", &format!("(Stream {index})"))));
        body.push(format!("  {}", allocate(&b)));
        body.extend([format!("  {b} = relu({a})"), "SetCurrentStream(Stream s0)".to_owned()]);
        body.push(format!("{a} = neg({input})"));
        outputs.push(a);
    }
    for at in 0..PLAIN {
        let [a, b] = [1, 2].map(|it| tensor(2 * (LOOPS + at) + it, ""));
        body.extend([allocate(&a), allocate(&b), "SetCurrentStream(Stream 1)".to_owned()]);
        body.extend(["Synchronize(Stream s0)".to_owned(), format!("{a} = neg({input})")]);
        body.extend(["SetCurrentStream(Stream s0)".to_owned(), format!("{b} = relu({a})")]);
        outputs.push(b);
    }
    body.extend(["Synchronize(Stream 1)", "Synchronize(Stream 2)"].map(str::to_owned));
    let text = container(&input, &outputs, &body);
    let fixed = fix(&text, 0, Checks::DEFAULT, &planned);
    if let Some(it) = diagnostics(&fixed.text)?.iter().find(|it| it.1.is_error()) {
        return Err(format!("{:?}\n{}", it.1, fixed.text).into());
    }
    let (edits, wanted) = (fixed.edits.len(), PLAIN + 2 * LOOPS);
    if edits == wanted {
        Ok(())
    } else {
        Err(format!("{edits} edits instead of {wanted}:\n{}", fixed.text).into())
    }
}

/// Fixes a program of many instructions: the search ends at its bound, and goes on in the edited text.
fn ends_at_a_bound() -> Result<(), Failed> {
    let text = races(4).replace(
        "Stream s0 = GetCurrentStream()\n",
        "Stream s0 = GetCurrentStream()\n  FOR i900 from 0 to 1000:\n    FOR i901 from 0 to 450:\n      Synchronize(Stream 99)\n",
    );
    let first = fix(&text, 0, Checks::DEFAULT, &planned);
    let second = fix(&first.text, 0, Checks::DEFAULT, &planned);
    let limits = (first.limit, second.limit);
    if limits == (Some(FixLimit::Instructions), None) && !first.edits.is_empty() && !second.edits.is_empty() {
        Ok(())
    } else {
        Err(format!("{limits:?} after {} and {} edits", first.edits.len(), second.edits.len()).into())
    }
}

/// Reduces a program to one finding.
fn reduced(text: &str, _: usize) -> Result<(), Failed> {
    let (session, running) =
        (Session::of_process("hir reduce", Default::default()), CommandRunner::default());
    let test = FailureTest::new(&session, &FailureOracle::Race, &running);
    let start = Candidate::read(text.to_owned()).map_err(|it| format!("{it:?}"))?;
    let signatures = test.failure_signatures(&start)?;
    let reduced = reduce(start, 2_000, &SameFailure { test, signatures }, &mut |_, _| ());
    if reduced.candidate.statements() < 16 && !reduced.hit_limit {
        Ok(())
    } else {
        Err(format!("{} statements are left", reduced.candidate.statements()).into())
    }
}

fn tensor(number: usize, mesh: &str) -> String {
    format!("T{number}_g_float[iS{number}{{4}}]{mesh}")
}

fn container(inputs: &str, outputs: &[String], body: &[String]) -> String {
    let lines: String = body.iter().map(|it| format!("  {it}\n")).collect();
    format!("%HostIrContainer {{ ({inputs}) -> ({}) :\n{lines}}} // %HostIrContainer\n", outputs.join(", "))
}

fn allocate(tensor: &str) -> String {
    format!("{tensor} = ALLOCATE(mem_type=global, zero_init=true)")
}

/// Writes the even columns of a matrix, and then the odd ones: the written elements are in many pieces.
fn columns(count: usize) -> String {
    let column = |index: &str| {
        let loops = format!("FOR i{} from 0 to {}:", index.len(), count / 2);
        let index = index.replace('i', &format!("i{}", index.len()));
        let select =
            format!("T2_l_float[iS3{{64}}] = HirAliasSelect( T1, axis = iS2{{{count}}}, index = {index} )");
        [loops, format!("  {select}"), "  T2 = neg(T0)".to_owned()]
    };
    let output = format!("T1_g_float[iS1{{64}}, iS2{{{count}}}]");
    let mut body = vec![allocate(&output)];
    body.extend(["( i * 2 )", "( ( i * 2 ) + 1 )"].iter().flat_map(|it| column(it)));
    container("T0_g_float[iS0{64}]", &[output], &body)
}

/// Reads on the entry stream of what stream 1 writes.
fn races(count: usize) -> String {
    let input = tensor(0, "");
    let pairs: Vec<[String; 2]> = (0..count).map(|at| [1, 2].map(|it| tensor(2 * at + it, ""))).collect();
    let mut body = vec!["Stream s0 = GetCurrentStream()".to_owned()];
    body.extend(pairs.iter().flatten().map(|it| allocate(it)));
    body.extend(["SetCurrentStream(Stream 1)", "Synchronize(Stream s0)"].map(str::to_owned));
    for [a, b] in &pairs {
        body.extend(["SetCurrentStream(Stream 1)".to_owned(), format!("{a} = neg({input})")]);
        body.extend(["SetCurrentStream(Stream s0)".to_owned(), format!("{b} = relu({a})")]);
    }
    body.push("Synchronize(Stream 1)".to_owned());
    let outputs: Vec<String> = pairs.into_iter().map(|[_, b]| b).collect();
    container(&input, &outputs, &body)
}

/// Reads of what all-reduces write for which nothing waits.
fn missing_waits(count: usize) -> String {
    const MESH: &str = " (DeviceMesh{0 1})";
    let input = tensor(0, MESH);
    let (mut outputs, mut body) = (Vec::new(), Vec::new());
    for at in 0..count {
        let [a, b] = [1, 2].map(|it| tensor(2 * at + it, MESH));
        body.push(allocate(&a));
        body.push(format!(
            "Communication {} (type=Allreduce, team=(0 1), red_op=SUM, input={input}, output={a}, backend=NCCL)",
            at + 3
        ));
        body.push(format!("{b} = relu({a})"));
        outputs.push(b);
    }
    container(&input, &outputs, &body)
}

/// Storage that is freed and used again while stream 1 reads it.
fn storage(count: usize) -> String {
    let input = tensor(0, "");
    let (mut outputs, mut body) = (Vec::new(), vec!["Stream s0 = GetCurrentStream()".to_owned()]);
    for at in 0..count {
        let [a, b, c] = [1, 2, 3].map(|it| tensor(3 * at + it, ""));
        body.extend([allocate(&a), allocate(&b), format!("{b} = neg({input})")]);
        body.extend(["SetCurrentStream(Stream 1)", "Synchronize(Stream s0)"].map(str::to_owned));
        body.extend([format!("{a} = relu({b})"), "SetCurrentStream(Stream s0)".to_owned()]);
        body.extend(["Deallocate {".to_owned(), format!("  {b}"), "}".to_owned()]);
        body.extend([allocate(&c), format!("{c} = exp({input})")]);
        outputs.extend([a, c]);
    }
    body.push("Synchronize(Stream 1)".to_owned());
    container(&input, &outputs, &body)
}
