//! Deadlocks of hosts that block by the rules of `host_rules`.

use super::{Deadlock, HostRule, WaitOrder, World, explain::explain_hosts};
use crate::Plan;

impl World {
    /// Returns the deadlock of hosts that block by `rules`, if there is one, with the rules that it needs. The plans must not deadlock
    /// otherwise.
    pub fn deadlock_of_hosts(&self, rules: &[HostRule]) -> Option<Deadlock> {
        let mut needed: Vec<HostRule> = rules.iter().copied().filter(|it| self.may_block(*it)).collect();
        // Hosts that block less often do not deadlock if these do not.
        if needed.is_empty() || !self.is_blocked_by(&needed) {
            return None;
        }
        for rule in HostRule::ALL.into_iter().rev() {
            let fewer: Vec<HostRule> = needed.iter().copied().filter(|it| *it != rule).collect();
            if !fewer.is_empty() && self.is_blocked_by(&fewer) {
                needed = fewer;
            }
        }
        let order = order_of(&needed);
        let with_waits =
            needed.contains(&HostRule::SymmetricMemory).then(|| self.with_waits_for_symmetric_memory());
        let world = with_waits.as_ref().unwrap_or(self);
        let lists_hosts = needed != [HostRule::Creation];
        let found = explain_hosts(world, &world.blocked_state(order)?, order, lists_hosts);
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
            HostRule::SymmetricMemory => self.allocates_symmetric_memory(),
        }
    }

    fn is_blocked_by(&self, rules: &[HostRule]) -> bool {
        let order = order_of(rules);
        if rules.contains(&HostRule::SymmetricMemory) {
            return self.with_waits_for_symmetric_memory().blocked_state(order).is_some();
        }
        self.blocked_state(order).is_some()
    }
}

/// Returns the order in which hosts block by some rules. What symmetric memory adds is in the plans.
fn order_of(rules: &[HostRule]) -> WaitOrder {
    let [creates, connects] = [HostRule::Creation, HostRule::Connection].map(|it| rules.contains(&it));
    WaitOrder::Hosts { creates, connects }
}
