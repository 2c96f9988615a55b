//! How the ranks of a job find each other: rank 0 listens, the others connect.
//!
//! A connection begins with a greeting that names the job, so that a stranger, or a rank of another job whose port was
//! derived alike, is turned away. A port that was not given exactly is looked for among the next `SCAN`.

use std::{
    io::{self, Read, Write},
    net::{TcpListener, TcpStream, ToSocketAddrs},
    thread,
    time::{Duration, Instant},
};

use rustc_hash::FxHasher;

use super::{
    LaunchError,
    environment::Launch,
    wire::{self, Kind},
};

/// Where the ranks of a job meet.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Address {
    /// Rank 0's host.
    pub host: String,
    /// The first port to try.
    pub port: u16,
    /// How many ports may be tried: something else may listen where the port is not our own.
    pub ports: u16,
    /// Tells this job from others.
    pub job: u64,
}

/// How many ports are tried where the port is not given for hir alone.
const SCAN: u16 = 16;
/// Derived ports: below those that Linux hands out to connections.
const DERIVED: std::ops::Range<u64> = 20_000..32_000;
/// What a greeting begins with; the digit counts versions of the protocol.
const MAGIC: &[u8; 8] = b"hirrank1";
/// How long a connection may take to say who it is.
const GREETING: Duration = Duration::from_secs(2);
/// Between two tries.
const PAUSE: Duration = Duration::from_millis(50);

/// Where the environment says that the ranks meet.
///
/// # Errors
/// Several hosts, or several jobs that cannot be told apart, and no address.
pub fn address(launch: &Launch, variable: impl Fn(&str) -> Option<String>) -> Result<Address, LaunchError> {
    let set = |name: &str| variable(name).filter(|it| !it.trim().is_empty());
    let port = |name: &str| match set(name).map(|text| (text.trim().parse::<u16>(), text)) {
        None => Ok(None),
        Some((Ok(port), _)) if port > 0 => Ok(Some(port)),
        Some((_, text)) => Err(LaunchError::Environment(format!("`{name}` is `{text}`, not a port"))),
    };
    let (own, shared) = (port("HIR_MASTER_PORT")?, port("MASTER_PORT")?);
    let host = set("HIR_MASTER_ADDR").or_else(|| set("MASTER_ADDR")).or_else(|| first_host(&set));
    if host.is_none() && launch.local_size.is_some_and(|it| it < launch.size) {
        return Err(LaunchError::Environment(format!(
            "{}: the ranks are on several hosts: name rank 0's in `HIR_MASTER_ADDR`",
            launch.family
        )));
    }
    let host = host.unwrap_or_else(|| "127.0.0.1".to_owned());
    let named = format!("{} {} {}", launch.family, launch.job.as_deref().unwrap_or(""), launch.size);
    let job = hash(&[named.as_str(), &set("HIR_JOB").unwrap_or_default()].join(" "));
    let (port, ports) = match (own, shared) {
        (Some(port), _) => (port, 1),
        // torchrun's agent listens on the port itself.
        (None, Some(port)) => (port.checked_add(1).unwrap_or(1024), SCAN),
        (None, None) if launch.job.is_some() => {
            ((DERIVED.start + job % (DERIVED.end - DERIVED.start)) as u16, SCAN)
        }
        (None, None) => {
            return Err(LaunchError::Environment(format!(
                "{}: nothing tells this job from another one: set `HIR_MASTER_PORT`",
                launch.family
            )));
        }
    };
    Ok(Address { host, port, ports, job })
}

/// The first host of a Slurm step of several: `node[03-07,9],other` gives `node03`.
fn first_host(set: &impl Fn(&str) -> Option<String>) -> Option<String> {
    let several = set("SLURM_STEP_NUM_NODES").is_some_and(|it| it.trim() != "1");
    let list = set("SLURM_STEP_NODELIST").filter(|_| several)?;
    let (prefix, rest) = list.split_at(list.find(['[', ',']).unwrap_or(list.len()));
    match rest.strip_prefix('[') {
        Some(numbers) => Some(format!("{prefix}{}", numbers.split([',', '-', ']']).next()?)),
        None => Some(prefix.to_owned()),
    }
}

fn hash(text: &str) -> u64 {
    use std::hash::Hasher;
    let mut hasher = FxHasher::default();
    hasher.write(text.as_bytes());
    hasher.finish()
}

impl std::fmt::Display for Address {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.ports {
            1 => write!(f, "{}:{}", self.host, self.port),
            ports => write!(f, "{}:{}..{}", self.host, self.port, self.port.saturating_add(ports - 1)),
        }
    }
}

impl Address {
    fn candidates(&self) -> impl Iterator<Item = u16> {
        self.port..=self.port.saturating_add(self.ports - 1)
    }

    fn fault(&self, message: String) -> LaunchError {
        LaunchError::Rendezvous { address: self.to_string(), message }
    }

    fn is_local(&self) -> bool {
        ["localhost", "127.0.0.1", "::1"].contains(&self.host.as_str())
    }
}

/// Connects a rank with the others: rank 0 gets a connection from each, by rank from 1; the others get one to rank 0, once
/// all have come.
///
/// # Errors
/// Those who are not there at the deadline; no port to listen on.
pub fn connect(
    address: &Address,
    rank: usize,
    world: usize,
    patience: Duration,
) -> Result<Vec<TcpStream>, LaunchError> {
    match (world, rank) {
        (1, _) => Ok(Vec::new()),
        (_, 0) => {
            let mut peers: Vec<Option<TcpStream>> = (1..world).map(|_| None).collect();
            let complete = listen(address, &mut peers, Instant::now() + patience);
            let (kind, bytes) = match &complete {
                Ok(()) => (Kind::Parts, Vec::new()),
                Err(fault) => (Kind::Fault, wire::encode(fault)),
            };
            for stream in peers.iter_mut().flatten() {
                // Whoever is lost again already is noticed when it is needed.
                let _ = wire::write(stream, kind, &bytes);
            }
            complete.map(|()| peers.into_iter().flatten().collect())
        }
        _ => {
            let mut stream = dial(address, rank, world, patience)?;
            let lost = |fault: io::Error| address.fault(format!("rank 0 came and left: {fault}"));
            stream.set_read_timeout(Some(patience + GREETING)).map_err(lost)?;
            match wire::read(&mut stream).map_err(lost)? {
                (Kind::Parts, _) => stream.set_read_timeout(None).map_err(lost).map(|()| vec![stream]),
                (_, bytes) => Err(wire::decode(&bytes).unwrap_or(LaunchError::Gone { rank: 0 })),
            }
        }
    }
}

fn listen(address: &Address, peers: &mut [Option<TcpStream>], deadline: Instant) -> Result<(), LaunchError> {
    let interface = if address.is_local() { "127.0.0.1" } else { "0.0.0.0" };
    let mut last = None;
    let found = address
        .candidates()
        .find_map(|port| TcpListener::bind((interface, port)).map_err(|fault| last = Some(fault)).ok());
    let Some(listener) = found else {
        let why = last.map_or(String::new(), |it| format!(": {it}"));
        return Err(address.fault(format!("rank 0 cannot listen{why}; choose another `HIR_MASTER_PORT`")));
    };
    let lost = |fault: io::Error| address.fault(fault.to_string());
    listener.set_nonblocking(true).map_err(lost)?;
    while peers.iter().any(Option::is_none) {
        match listener.accept() {
            Ok((stream, _)) => {
                if let Some((rank, stream)) = admit(stream, address.job, peers) {
                    peers[rank - 1] = Some(stream);
                }
            }
            Err(_) if Instant::now() < deadline => thread::sleep(Duration::from_millis(5)),
            Err(_) => {
                let missing: Vec<usize> =
                    peers.iter().enumerate().filter(|(_, it)| it.is_none()).map(|(at, _)| at + 1).collect();
                return Err(address.fault(format!("ranks {missing:?} of {} did not come", peers.len() + 1)));
            }
        }
    }
    Ok(())
}

/// Who connected: one of the ranks that are missing, or nobody of ours.
fn admit(mut stream: TcpStream, job: u64, peers: &[Option<TcpStream>]) -> Option<(usize, TcpStream)> {
    stream.set_nonblocking(false).ok()?;
    stream.set_read_timeout(Some(GREETING)).ok()?;
    let mut greeting = [0; 24];
    stream.read_exact(&mut greeting).ok()?;
    let wanted = Greeting { job, rank: 0 }.bytes();
    let rank = u64::from_le_bytes(*greeting.last_chunk::<8>()?) as usize;
    let free = rank.checked_sub(1).and_then(|at| peers.get(at)).is_some_and(Option::is_none);
    if greeting[..16] != wanted[..16] || !free {
        return None;
    }
    stream.write_all(&Greeting { job: !job, rank: 0 }.bytes()).ok()?;
    stream.set_read_timeout(None).ok()?;
    Some((rank, stream))
}

/// What a rank says first. Rank 0 answers with the job's complement: an echo is no answer.
struct Greeting {
    job: u64,
    rank: usize,
}

impl Greeting {
    fn bytes(&self) -> [u8; 24] {
        let mut bytes = [0; 24];
        bytes[..8].copy_from_slice(MAGIC);
        bytes[8..16].copy_from_slice(&self.job.to_le_bytes());
        bytes[16..].copy_from_slice(&(self.rank as u64).to_le_bytes());
        bytes
    }
}

fn dial(address: &Address, rank: usize, world: usize, patience: Duration) -> Result<TcpStream, LaunchError> {
    let deadline = Instant::now() + patience;
    let mut last = "nobody listens".to_owned();
    loop {
        for port in address.candidates() {
            match greet(address, port, rank) {
                Ok(stream) => return Ok(stream),
                Err(fault) if fault.kind() == io::ErrorKind::ConnectionRefused => (),
                Err(fault) => last = fault.to_string(),
            }
        }
        if Instant::now() >= deadline {
            let message = format!("rank {rank} of {world} did not find rank 0: {last}");
            return Err(address.fault(message));
        }
        thread::sleep(PAUSE);
    }
}

fn greet(address: &Address, port: u16, rank: usize) -> io::Result<TcpStream> {
    let mut last = io::Error::new(io::ErrorKind::NotFound, format!("`{}` has no address", address.host));
    for socket in (address.host.as_str(), port).to_socket_addrs()? {
        match TcpStream::connect_timeout(&socket, GREETING) {
            Ok(mut stream) => {
                stream.set_read_timeout(Some(GREETING * 2))?;
                stream.write_all(&Greeting { job: address.job, rank }.bytes())?;
                let mut answer = [0; 24];
                stream.read_exact(&mut answer)?;
                if answer != (Greeting { job: !address.job, rank: 0 }).bytes() {
                    return Err(io::Error::new(io::ErrorKind::InvalidData, "somebody else listens there"));
                }
                stream.set_read_timeout(None)?;
                return Ok(stream);
            }
            Err(fault) => last = fault,
        }
    }
    Err(last)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn launch() -> Launch {
        Launch {
            family: "Open MPI",
            rank: 0,
            size: 4,
            local_rank: 0,
            local_size: Some(4),
            job: Some("77".to_owned()),
        }
    }

    fn at(launch: &Launch, variables: &[(&str, &str)]) -> Result<Address, LaunchError> {
        address(launch, |name| variables.iter().find(|(it, _)| *it == name).map(|(_, it)| (*it).to_owned()))
    }

    #[test]
    fn an_address_is_given_or_derived() {
        let derived = at(&launch(), &[]).map(|it| (it.host, DERIVED.contains(&u64::from(it.port)), it.ports));
        assert_eq!(derived, Ok(("127.0.0.1".to_owned(), true, SCAN)));
        let text = |variables: &[(&str, &str)]| match at(&launch(), variables) {
            Ok(it) => it.to_string(),
            Err(fault) => fault.to_string(),
        };
        assert_eq!(text(&[("HIR_MASTER_PORT", "700"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "9")]), "a:700");
        assert_eq!(text(&[("MASTER_ADDR", "a"), ("MASTER_PORT", "900")]), "a:901..916");
        assert_eq!(text(&[("MASTER_PORT", "x")]), "`MASTER_PORT` is `x`, not a port");
    }

    #[test]
    fn jobs_that_cannot_meet_say_what_to_set() {
        let nameless = at(&Launch { job: None, ..launch() }, &[]);
        assert!(nameless.is_err_and(|it| it.to_string().contains("set `HIR_MASTER_PORT`")));
        let spread = Launch { local_size: Some(2), ..launch() };
        assert!(at(&spread, &[]).is_err_and(|it| it.to_string().contains("`HIR_MASTER_ADDR`")));
        let slurm = [("SLURM_STEP_NUM_NODES", "2"), ("SLURM_STEP_NODELIST", "node[03-07,9],x")];
        assert_eq!(at(&spread, &slurm).map(|it| it.host), Ok("node03".to_owned()));
    }

    #[test]
    fn a_stranger_is_turned_away() -> io::Result<()> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let address = Address { host: "127.0.0.1".to_owned(), port, ports: 1, job: 5 };
        let other = Address { job: 6, ..address.clone() };
        let patience = Duration::from_secs(10);
        thread::scope(|scope| {
            let first = scope.spawn(|| connect(&address, 0, 2, patience));
            let mut stranger = loop {
                match TcpStream::connect(("127.0.0.1", port)) {
                    Ok(it) => break it,
                    Err(_) => thread::sleep(PAUSE),
                }
            };
            stranger.write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n")?;
            // A rank of another job does not get in; neither does a rank that there is not.
            assert!(greet(&other, port, 1).is_err());
            assert!(greet(&address, port, 2).is_err());
            assert!(connect(&address, 1, 2, patience).is_ok_and(|it| it.len() == 1));
            let admitted = first.join().is_ok_and(|it| it.is_ok_and(|it| it.len() == 1));
            assert!(admitted);
            Ok(())
        })
    }
}
