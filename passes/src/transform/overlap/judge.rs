//! Whether the iterations of a loop overlap communication with computation once they are on streams of their own.

use grammar::{
    attr,
    ir::{Program, Stmt, StmtId},
    ops::{Effect, Rule},
    words::Backend,
};

use crate::{
    analysis::{
        accesses::Storage,
        iterations::{Carried, Mentioned, carried},
    },
    pass::{Arguments, Pass, Remarks},
    transform::{hoist_share_mem_handles, lower_to_communication},
};

/// What keeps each of the loops from overlapping, after what is left of resharding became communication; `None`: nothing.
pub(super) fn obstacles(program: &Program, loops: &[StmtId]) -> Vec<Option<String>> {
    let mut lowered = program.clone();
    if let Err(reason) = run(&mut lowered, &lower_to_communication::PASS) {
        return vec![Some(reason); loops.len()];
    }
    let (storage, mentioned) = (Storage::of(&lowered), Mentioned::of(&lowered));
    let mut found: Vec<Option<String>> =
        loops.iter().map(|stmt| obstacle(&lowered, &storage, &mentioned, *stmt)).collect();
    let shares = |stmt: &StmtId| Body::of(&lowered, *stmt).shares;
    if loops.iter().zip(&found).any(|(stmt, found)| found.is_none() && shares(stmt))
        && let Err(reason) = run(&mut lowered.clone(), &hoist_share_mem_handles::PASS)
    {
        let shared = loops.iter().zip(&mut found).filter(|(stmt, _)| shares(stmt));
        shared.for_each(|(_, found)| *found = found.take().or_else(|| Some(reason.clone())));
    }
    found
}

fn run(program: &mut Program, pass: &Pass) -> Result<(), String> {
    let done = (pass.run)(program, &Arguments::defaults(pass), &mut Remarks::default());
    done.map(drop).map_err(|it| it.message)
}

fn obstacle(program: &Program, storage: &Storage, mentioned: &Mentioned, stmt: StmtId) -> Option<String> {
    let Stmt::For(it) = &program.stmts[stmt] else { return Some("there is no loop".to_owned()) };
    let trips = program.constant(it.start).zip(program.constant(it.stop)).map(|(start, stop)| stop - start);
    let body = Body::of(program, stmt);
    if trips.is_some_and(|trips| trips < 2) {
        return Some("there is one chunk only".to_owned());
    }
    if !body.communicates {
        return Some("its chunks are not those that the loop computes".to_owned());
    }
    if !body.multiplies {
        return Some("no matrix product makes or reads it in chunks".to_owned());
    }
    if body.is_queued {
        return Some(
            "every product would wait for the communications of the chunk before, in one queue".to_owned(),
        );
    }
    carried(program, storage, mentioned, it).map(|why| match why {
        Carried::Storage(tensor, _) => {
            format!(
                "its chunks would depend on each other: they share the storage of `{}`",
                program.tensor_name(tensor)
            )
        }
        Carried::Work(number, _) => {
            format!("its chunks would depend on each other: one waits for Communication {number} of another")
        }
    })
}

/// What a loop does.
#[derive(Default)]
struct Body {
    communicates: bool,
    multiplies: bool,
    shares: bool,
    /// Whether all products are between two communications of one queue: those of the next chunk come behind them then.
    is_queued: bool,
}

impl Body {
    fn of(program: &Program, stmt: StmtId) -> Self {
        let mut found = Self::default();
        let Stmt::For(it) = &program.stmts[stmt] else { return found };
        // Products before the first communication of a queue, and since the last one.
        let (mut before, mut since, mut queued) = (0, 0, 0);
        program.walk(it.body, &mut |stmt| {
            let Stmt::Op(it) = &program.stmts[stmt] else { return };
            let row = it.op.row();
            if row.effect == Effect::Communicate && it.get(attr::BACKEND) != Some(Backend::Cuda) {
                (queued, since) = (queued + 1, 0);
            }
            if matches!(row.rule, Rule::Linear | Rule::Matmul) {
                since += 1;
                before += usize::from(queued == 0);
            }
            found.communicates |= row.effect == Effect::Communicate;
            found.shares |= row.effect == Effect::Share;
            found.multiplies |= matches!(row.rule, Rule::Linear | Rule::Matmul);
        });
        found.is_queued = queued > 1 && before == 0 && since == 0;
        found
    }
}
