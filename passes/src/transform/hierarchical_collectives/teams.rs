//! Divides teams into those within hosts and those across them.

use crate::pass::Obstacle;

/// Teams of equal size, each of which is the product of hosts and ranks within a host.
pub(super) struct HostTeams {
    /// By team, host and index within the host.
    ranks: Vec<Vec<Vec<usize>>>,
    /// Whether the members of a team are ordered host by host, and not index by index; `None` if their order is neither.
    pub(super) is_by_host: Option<bool>,
}

impl HostTeams {
    /// Divides teams. Returns `None` if each team is within a host, or has no two ranks on one.
    ///
    /// # Errors
    /// Returns the reason why the teams are no such products.
    pub(super) fn of(teams: &[Vec<usize>], per_host: usize) -> Result<Option<Self>, Obstacle> {
        let ranks: Vec<Vec<Vec<usize>>> = teams.iter().map(|team| by_host(team, per_host)).collect();
        if ranks.iter().all(|it| it.len() < 2 || it.iter().all(|host| host.len() < 2)) {
            return Ok(None);
        }
        let [hosts, within] = [ranks[0].len(), ranks[0][0].len()];
        for (team, hosts_of_team) in teams.iter().zip(&ranks) {
            let sizes: Vec<usize> = hosts_of_team.iter().map(Vec::len).collect();
            if sizes.iter().any(|it| *it != within) || sizes.len() != hosts {
                let sizes: Vec<String> = sizes.iter().map(usize::to_string).collect();
                return Err(Obstacle::from(match sizes.len() {
                    1 => format!("only some of its teams span hosts of {per_host} ranks"),
                    _ => format!(
                        "its team of {} ranks has {} ranks on hosts of {per_host}, and all hosts of all teams need the same number",
                        team.len(),
                        sizes.join(", ")
                    ),
                }));
            }
        }
        let is_by_host = [true, false].into_iter().find(|by_host| {
            teams.iter().zip(&ranks).all(|(team, hosts)| {
                team.iter().enumerate().all(|(at, rank)| {
                    let (host, index) = if *by_host {
                        (at / within, at % within)
                    } else {
                        (at % hosts.len(), at / hosts.len())
                    };
                    hosts[host][index] == *rank
                })
            })
        });
        Ok(Some(Self { ranks, is_by_host }))
    }

    /// The number of teams.
    pub(super) fn count(&self) -> usize {
        self.ranks.len()
    }

    /// The number of hosts of a team.
    pub(super) fn hosts(&self) -> usize {
        self.ranks[0].len()
    }

    /// The number of ranks of a team on each host.
    pub(super) fn within(&self) -> usize {
        self.ranks[0][0].len()
    }

    /// Returns the teams within hosts that a team is divided into.
    pub(super) fn within_hosts(&self, team: usize) -> Vec<Vec<usize>> {
        self.ranks[team].clone()
    }

    /// Returns the teams across hosts that a team is divided into.
    pub(super) fn across_hosts(&self, team: usize) -> Vec<Vec<usize>> {
        let at = |index: usize| self.ranks[team].iter().map(|host| host[index]).collect();
        (0..self.within()).map(at).collect()
    }

    /// Returns all ranks, by team, host and index within the host.
    pub(super) fn devices(&self) -> Vec<usize> {
        self.ranks.iter().flatten().flatten().copied().collect()
    }
}

/// Returns the members of a team on each host, in the order of the team.
fn by_host(team: &[usize], per_host: usize) -> Vec<Vec<usize>> {
    let mut numbers: Vec<usize> = Vec::new();
    let mut hosts: Vec<Vec<usize>> = Vec::new();
    for rank in team {
        match numbers.iter().position(|it| *it == rank / per_host) {
            Some(at) => hosts[at].push(*rank),
            None => {
                numbers.push(rank / per_host);
                hosts.push(vec![*rank]);
            }
        }
    }
    hosts
}
