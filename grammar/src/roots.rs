//! What the root of a collective can mean: a device of the world, or a member of the team.

use crate::{
    attr,
    ir::{ExprId, Program, Stmt},
};

/// What `root=` can mean.
pub(crate) enum RootInterpretation {
    /// The same member either way.
    Unambiguous,
    /// A device only: this member of the team.
    DeviceOnly(i64),
    /// A member of the team, or a device, which would be this member where that can be told.
    MemberOrDevice(Option<i64>),
}

impl RootInterpretation {
    /// What a root of a team can mean.
    pub(crate) fn of(program: &Program, root: ExprId, team: &[usize]) -> Self {
        if team.iter().enumerate().all(|(at, device)| at == *device) {
            return Self::Unambiguous;
        }
        let Some(root) = program.constant(root) else { return Self::MemberOrDevice(None) };
        let member = team.iter().position(|device| i64::try_from(*device) == Ok(root));
        let place = member.and_then(|it| i64::try_from(it).ok());
        let in_team = usize::try_from(root).is_ok_and(|it| it < team.len());
        match place {
            Some(place) if place == root => Self::Unambiguous,
            Some(place) if in_team => Self::MemberOrDevice(Some(place)),
            Some(place) => Self::DeviceOnly(place),
            None => Self::Unambiguous,
        }
    }
}

/// Whether a reader could take some root for a device: then the text has to say that roots count within teams.
pub(crate) fn has_ambiguous_roots(program: &Program) -> bool {
    let mut res = false;
    if let Some(body) = program.body {
        program.walk(body, &mut |id| {
            let Stmt::Op(stmt) = &program.stmts[id] else { return };
            if let (Some(root), Some(team)) = (stmt.get(attr::ROOT), stmt.get(attr::TEAM)) {
                res |=
                    !matches!(RootInterpretation::of(program, root, team), RootInterpretation::Unambiguous);
            }
        });
    }
    res
}
