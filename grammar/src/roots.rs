//! Interprets the root of a collective: a device number, or an index in the team.

use crate::{
    attr,
    ir::{ExprId, Program},
};

/// The possible interpretations of `root=`.
pub(crate) enum RootInterpretation {
    /// Both interpretations give the same member, or only the index is possible.
    Unambiguous,
    /// Only a device number is possible; it is this index in the team.
    DeviceOnly(i64),
    /// An index in the team, or a device number; the value is the device's index in the team if the root is
    /// constant.
    MemberOrDevice(Option<i64>),
}

impl RootInterpretation {
    /// Returns the interpretations of `root` for `team`.
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

/// Returns whether a reader could interpret the root of some collective as a device number. The text must
/// then state that roots are indices in the team.
pub(crate) fn has_ambiguous_roots(program: &Program) -> bool {
    program.ops().filter_map(|(_, it)| it.get(attr::ROOT).zip(it.get(attr::TEAM))).any(|(root, team)| {
        !matches!(RootInterpretation::of(program, root, team), RootInterpretation::Unambiguous)
    })
}
