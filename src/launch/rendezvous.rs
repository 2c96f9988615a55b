//! Connects the ranks of a job: rank 0 listens (`listen`), the others connect (`dial`).
//!
//! Both ends of a connection first prove that they have the job's secret (`session`). If the port is not
//! given exactly, rank 0 takes one of the next `MAX_PORTS_TRIED` ports. If rank 0 publishes the secret in a
//! file, the file contains the port.

use std::{
    io,
    net::{SocketAddr, TcpStream},
    time::{Duration, Instant},
};

use rustc_hash::FxHasher;

use super::{
    LaunchError, Result,
    environment::LaunchInfo,
    message::Message,
    secret::{
        self, Secret, SecretOrigin,
        published::{self, SecretFileLocation},
    },
    session::{JobKey, Opener, Sealer},
};

mod dial;
mod listen;
mod pending;
#[cfg(test)]
mod tests;

/// The address at which the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// The host of rank 0, or the interface of that host on which rank 0 listens.
    pub host: String,
    /// The first port to try.
    pub port: u16,
    /// Number of ports to try. More than one if another process may listen on the port.
    pub ports: u16,
    /// Identifies this job, from the launcher and the port. Jobs that meet at different ports have different
    /// identifiers.
    pub job: String,
    /// True if ranks may be on other hosts than rank 0.
    pub is_multi_host: bool,
}

/// An authenticated connection to another rank of the job.
pub(super) struct Connection {
    pub(super) stream: TcpStream,
    pub(super) sealer: Sealer,
    pub(super) opener: Opener,
}

impl Connection {
    pub(super) fn send(&mut self, message: &Message) -> io::Result<()> {
        let records = self.sealer.seal(message)?;
        io::Write::write_all(&mut &self.stream, &records)
    }

    pub(super) fn receive(&mut self) -> io::Result<Message> {
        self.opener.read(&mut &self.stream)
    }
}

/// Number of ports to try if the port is not reserved for hir.
const MAX_PORTS_TRIED: u16 = 16;
/// Range of derived ports: below the ephemeral ports of Linux.
const DERIVED_PORTS: std::ops::Range<u64> = 20_000..32_000;
/// Interval in which a rank that waits for others looks whether it has to stop.
const STOP_INTERVAL: Duration = Duration::from_millis(20);
/// Time for a connection to complete the handshake.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(5);

/// Determines from the environment where the ranks meet.
///
/// # Errors
/// Returns an error if there are several hosts and no address is given, or if nothing distinguishes this job
/// from others.
pub fn address(launch: &LaunchInfo, variable: impl Fn(&str) -> Option<String>) -> Result<Address> {
    let set = |name: &str| variable(name).filter(|it| !it.trim().is_empty());
    let port = |name: &str| match set(name).map(|text| (text.trim().parse::<u16>(), text)) {
        None => Ok(None),
        Some((Ok(port), _)) if port > 0 => Ok(Some(port)),
        Some((_, text)) => Err(LaunchError::Environment(format!("`{name}` is `{text}`, not a port"))),
    };
    let (own, shared) = (port("HIR_MASTER_PORT")?, port("MASTER_PORT")?);
    let local = launch.local_size.map(|it| it >= launch.world);
    let one_node =
        set("SLURM_STEP_NUM_NODES").map(|it| it.trim() == "1").filter(|_| launch.launcher == "Slurm");
    let is_one_host = local.or(one_node);
    // Variables that are not specific to hir may name an interface that other hosts can reach. Ranks on one
    // host do not need it.
    let given = set("HIR_MASTER_ADDR").map(|it| it.trim().trim_matches(['[', ']']).to_owned());
    let shared_host = set("MASTER_ADDR").or_else(|| first_host(&set)).filter(|_| is_one_host != Some(true));
    let host = given.or(shared_host);
    if host.is_none() && is_one_host == Some(false) {
        return Err(LaunchError::Environment(format!(
            "{}: the ranks are on several hosts: set `HIR_MASTER_ADDR` to the host of rank 0",
            launch.launcher
        )));
    }
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    let is_spread = is_one_host != Some(true) && !is_loopback(&host);
    let named = format!("{} {} {}", launch.launcher, launch.job.as_deref().unwrap_or(""), launch.world);
    let job = [named.as_str(), &set("HIR_JOB").unwrap_or_default()].join(" ");
    let (port, ports) = match (own, shared) {
        (Some(port), _) => (port, 1),
        // The agent of torchrun listens on the port itself.
        (None, Some(port)) => (port.checked_add(1).unwrap_or(1024), MAX_PORTS_TRIED),
        (None, None) if launch.job.is_some() => (
            (DERIVED_PORTS.start + hash(&job) % (DERIVED_PORTS.end - DERIVED_PORTS.start)) as u16,
            MAX_PORTS_TRIED,
        ),
        (None, None) => {
            return Err(LaunchError::Environment(format!(
                "{}: nothing distinguishes this job from other jobs: set `HIR_MASTER_PORT`",
                launch.launcher
            )));
        }
    };
    let job = format!("{job} at port {port}");
    Ok(Address { host, port, ports, job, is_multi_host: is_spread })
}

/// Returns the first host of a Slurm step of several hosts: `node03` for `node[03-07,9],other`.
fn first_host(set: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let several = set("SLURM_STEP_NUM_NODES").is_some_and(|it| it.trim() != "1");
    let list = set("SLURM_STEP_NODELIST").filter(|_| several)?;
    let (prefix, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    match rest.strip_prefix('[') {
        Some(numbers) => Some(format!("{prefix}{}", numbers.split([',', '-', ']']).next()?)),
        None => Some(prefix.to_owned()),
    }
}

pub(super) fn hash(text: &str) -> u64 {
    use std::hash::Hasher;
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

/// Returns true if the host name denotes the loopback interface.
fn is_loopback(host: &str) -> bool {
    host == "localhost" || host.parse::<std::net::IpAddr>().is_ok_and(|it| it.is_loopback())
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        if self.host.contains(':') {
            write!(f, "[{}]:{}", self.host, self.port)?
        } else {
            write!(f, "{}:{}", self.host, self.port)?
        }
        match self.ports {
            1 => Ok(()),
            ports => write!(f, "..{}", self.port.saturating_add(ports - 1)),
        }
    }
}

impl Address {
    fn candidates(&self) -> impl Iterator<Item = u16> + use<> {
        self.port..=self.port.saturating_add(self.ports - 1)
    }

    fn fault(&self, message: String) -> LaunchError {
        LaunchError::Rendezvous { address: self.to_string(), message }
    }

    fn key(&self, secret: Secret, world: usize) -> JobKey {
        JobKey { secret, job: self.job.clone(), world }
    }
}

/// Keeps what else the address has: the scope of a link-local one.
fn with_port(mut address: SocketAddr, port: u16) -> SocketAddr {
    address.set_port(port);
    address
}

/// How the processes of a job get the secret with which they authenticate.
pub enum SecretSource {
    /// All processes have the secret already.
    Secret(Secret),
    /// Rank 0 creates the secret and publishes it in a file on its host.
    Published(SecretFileLocation),
}

impl SecretSource {
    /// Determines the source of the secret from the environment.
    ///
    /// # Errors
    /// Returns an error if the secret is not usable, or if ranks on several hosts have none.
    pub fn from_environment(address: &Address, variable: impl Fn(&str) -> Option<String>) -> Result<Self> {
        Ok(match secret::secret_origin(!address.is_multi_host, &variable)? {
            SecretOrigin::Given(secret) => Self::Secret(secret),
            SecretOrigin::Published => {
                Self::Published(SecretFileLocation::new(&address.job, address.port, variable))
            }
        })
    }
}

/// Connects a rank with the others. Rank 0 gets one connection from each other rank, by rank from 1. The
/// other ranks get one connection to rank 0, once all ranks have joined, and the random number of this run. `stop` returns why this rank has to stop, if it has to.
///
/// # Errors
/// Returns an error if this rank has to stop, if ranks are missing at the deadline, if no port is free, or if there is no secret.
pub(super) fn connect(
    address: &Address,
    trust: &SecretSource,
    rank: usize,
    world: usize,
    patience: Duration,
    stop: &dyn Fn() -> Option<LaunchError>,
) -> Result<(Vec<Connection>, u128)> {
    let deadline = Instant::now() + patience;
    match (world, rank) {
        (1, _) => Ok((Vec::new(), 0)),
        (_, 0) => {
            let (listener, port) = listen::bind(address)?;
            let (secret, _published) = match trust {
                SecretSource::Secret(secret) => (secret.clone(), None),
                SecretSource::Published(place) => {
                    let secret = Secret::random()?;
                    let published = published::publish(place, &secret, port)?;
                    (secret, Some(published))
                }
            };
            let connections =
                listen::admit(&listener, address, &address.key(secret, world), (deadline, stop))?;
            Ok((connections, 0))
        }
        _ => {
            let key = || match trust {
                SecretSource::Secret(secret) => Ok((address.key(secret.clone(), world), None)),
                SecretSource::Published(place) => {
                    let (secret, port) = published::read(place)?;
                    Ok((address.key(secret, world), Some(port)))
                }
            };
            let connection = dial::dial(address, rank, world, (deadline, stop), key)?;
            dial::await_welcome(connection, address, rank, (patience, stop)).map(|(it, run)| (vec![it], run))
        }
    }
}
