//! Deadlocks of hosts that block by the rules of `host_rules`.

use super::{Deadlock, HostRule, WaitOrder, World, WorldState, explain::explain_hosts};
use crate::Plan;

impl World {
    /// Returns the deadlock of hosts that block by `rules`, if there is one, with the rules that it needs. The plans must not deadlock
    /// otherwise.
    pub fn deadlock_of_hosts(&self, rules: &[HostRule]) -> Option<Deadlock> {
        let mut needed: Vec<HostRule> = rules.iter().copied().filter(|it| self.may_block(*it)).collect();
        // Hosts that block less often do not deadlock if these do not.
        let mut blocked = self.blocked_by(&needed)?;
        for rule in HostRule::ALL.into_iter().rev() {
            let fewer: Vec<HostRule> = needed.iter().copied().filter(|it| *it != rule).collect();
            if let Some(it) = self.blocked_by(&fewer) {
                (needed, blocked) = (fewer, it);
            }
        }
        let (with_waits, order, state) = blocked;
        let world = with_waits.as_ref().unwrap_or(self);
        let found = explain_hosts(world, &state, order, needed != [HostRule::Creation]);
        Some(Deadlock { hosts: needed, plans: with_waits.as_ref().map(|it| it.plans().into()), ..found })
    }

    /// Returns whether hosts of the program may block by a rule, and deadlock by it.
    fn may_block(&self, rule: HostRule) -> bool {
        let waits_twice = |plan: &Plan| {
            plan.communicators.len() > 1 || plan.code.iter().any(|it| it.kind.effect().runs_on_host())
        };
        match rule {
            HostRule::Creation => !self.matching().all_members_post() || self.iter().any(waits_twice),
            // The queue of a single communicator waits in the same order.
            HostRule::Connection => self.iter().any(waits_twice),
            HostRule::Exchange => self.exchanges_handles(),
            HostRule::SymmetricMemory => {
                self.iter().any(|plan| plan.allocations.iter().any(|it| it.is_symmetric && !it.is_empty))
            }
        }
    }

    /// Returns the state in which hosts that block by some rules deadlock, with the order, and with the plans if they differ.
    fn blocked_by(&self, rules: &[HostRule]) -> Option<(Option<Self>, WaitOrder, WorldState)> {
        if rules.is_empty() {
            return None;
        }
        let has = |rule| rules.contains(&rule);
        let order =
            WaitOrder::Hosts { creates: has(HostRule::Creation), connects: has(HostRule::Connection) };
        let waits = has(HostRule::SymmetricMemory) || has(HostRule::Exchange);
        let world = waits.then(|| self.with_host_waits(rules));
        let state = world.as_ref().unwrap_or(self).blocked_state(order)?;
        Some((world, order, state))
    }
}
