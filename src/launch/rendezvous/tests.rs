//! Tests of ranks, and processes that do not belong to the job, that meet on this host.

use std::{
    io::{Read, Write},
    net::TcpListener,
    sync::atomic::{AtomicBool, Ordering},
    thread,
};

use super::*;
use crate::session::{self, ANSWER_BYTES, HELLO_BYTES, Initiator, JOIN_BYTES};

fn launch() -> LaunchInfo {
    LaunchInfo {
        launcher: "Open MPI",
        rank: 0,
        world: 4,
        local_rank: Some(0),
        local_size: Some(4),
        job: Some("77".to_owned()),
    }
}

fn at(launch: &LaunchInfo, variables: &[(&str, &str)]) -> Result<Address, LaunchError> {
    address(launch, |name| variables.iter().find(|(it, _)| *it == name).map(|(_, it)| (*it).to_owned()))
}

fn connect(
    address: &Address,
    trust: &SecretSource,
    rank: usize,
    world: usize,
    patience: Duration,
) -> Result<Vec<Connection>, LaunchError> {
    super::connect(address, trust, rank, world, patience, &|| None).map(|it| it.0)
}

fn secret(byte: u8) -> SecretSource {
    SecretSource::Secret(Secret::from_bytes([byte; 32]))
}

/// Returns an address on this host on which no process listens now.
fn free(host: &str) -> io::Result<Address> {
    let port = TcpListener::bind((host, 0))?.local_addr()?.port();
    Ok(Address { host: host.to_owned(), port, ports: 1, job: "job".to_owned(), is_multi_host: false })
}

fn dial_blindly(address: &Address) -> TcpStream {
    loop {
        match TcpStream::connect((address.host.as_str(), address.port)) {
            Ok(it) => return it,
            Err(_) => thread::sleep(Duration::from_millis(5)),
        }
    }
}

#[test]
fn an_address_is_given_or_derived() {
    let derived =
        at(&launch(), &[]).map(|it| (it.host, DERIVED_PORTS.contains(&u64::from(it.port)), it.ports));
    assert_eq!(derived, Ok(("127.0.0.1".to_owned(), true, MAX_PORTS_TRIED)));
    let spread = LaunchInfo { local_size: Some(2), ..launch() };
    let text = |launch: &LaunchInfo, variables: &[(&str, &str)]| match at(launch, variables) {
        Ok(it) => it.to_string(),
        Err(fault) => fault.to_string(),
    };
    let own = [("HIR_MASTER_PORT", "700"), ("MASTER_ADDR", "a"), ("MASTER_PORT", "9")];
    assert_eq!(text(&spread, &own), "a:700");
    assert_eq!(text(&spread, &[("MASTER_ADDR", "a"), ("MASTER_PORT", "900")]), "a:901..916");
    // Ranks on one host do not need an interface that other hosts can reach.
    assert_eq!(text(&launch(), &own), "127.0.0.1:700");
    assert_eq!(text(&launch(), &[("HIR_MASTER_ADDR", "::1"), ("HIR_MASTER_PORT", "7")]), "[::1]:7");
    assert_eq!(text(&launch(), &[("HIR_MASTER_ADDR", "[::1]"), ("HIR_MASTER_PORT", "7")]), "[::1]:7");
    assert_eq!(text(&launch(), &[("MASTER_PORT", "x")]), "`MASTER_PORT` is `x`, not a port");
    let is_spread =
        |launch: &LaunchInfo, variables: &[(&str, &str)]| at(launch, variables).map(|it| it.is_multi_host);
    assert_eq!(is_spread(&spread, &own), Ok(true));
    assert_eq!(is_spread(&launch(), &own), Ok(false));
}

#[test]
fn jobs_that_cannot_meet_say_what_to_set() {
    let nameless = at(&LaunchInfo { job: None, ..launch() }, &[]);
    assert!(nameless.is_err_and(|it| it.to_string().contains("set `HIR_MASTER_PORT`")));
    let spread = LaunchInfo { local_size: Some(2), ..launch() };
    assert!(at(&spread, &[]).is_err_and(|it| it.to_string().contains("`HIR_MASTER_ADDR`")));
    let slurm = [("SLURM_STEP_NUM_NODES", "2"), ("SLURM_STEP_NODELIST", "node[03-07,9],x")];
    assert_eq!(at(&spread, &slurm).map(|it| it.host), Ok("node03".to_owned()));
    // A job on several hosts whose rank 0 can only be reached from its own host.
    let local =
        Address { host: "localhost".to_owned(), port: 9, ports: 1, job: String::new(), is_multi_host: true };
    let fault = connect(&local, &secret(1), 0, 2, Duration::from_secs(5)).err().map(|it| it.to_string());
    assert!(fault.is_some_and(|it| it.contains("other hosts cannot reach")));
    let foreign = Address { host: "192.0.2.1".to_owned(), port: 20_009, ..local };
    let fault = connect(&foreign, &secret(1), 0, 2, Duration::from_secs(5)).err().map(|it| it.to_string());
    assert!(fault.is_some_and(|it| it.contains("not an address of rank 0's host")));
}

#[test]
fn ranks_meet_on_the_interface_that_is_announced() -> io::Result<()> {
    for host in ["127.0.0.1", "::1", "localhost"] {
        let Ok(address) = free(host) else { continue };
        let address = &address;
        thread::scope(|scope| {
            let zero = scope.spawn(|| {
                let (listener, _) = listen::bind(address)?;
                // Rank 0 listens only on the interface that the address names.
                let bound = listener.local_addr().map(|it| it.ip().is_loopback());
                assert_eq!(bound.ok(), Some(true), "{host}");
                drop(listener);
                connect(address, &secret(1), 0, 2, Duration::from_secs(10))
            });
            let one = connect(address, &secret(1), 1, 2, Duration::from_secs(10));
            assert_eq!(one.map(|it| it.len()), Ok(1), "{host}");
            assert!(zero.join().is_ok_and(|it| it.is_ok_and(|it| it.len() == 1)), "{host}");
        });
    }
    Ok(())
}

#[test]
fn a_stranger_is_turned_away() -> io::Result<()> {
    let address = free("127.0.0.1")?;
    let other = Address { job: "other".to_owned(), ..address.clone() };
    // They try until their deadline. The deadline is long enough for a busy machine, and all of them try
    // concurrently.
    let (patience, short) = (Duration::from_secs(30), Duration::from_secs(4));
    thread::scope(|scope| {
        let first = scope.spawn(|| connect(&address, &secret(1), 0, 2, patience));
        let mut stranger = dial_blindly(&address);
        stranger
            .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\n\r\n and more than a greeting has bytes")?;
        // A rank of another job, one with another secret, and one of a job with another number of ranks are
        // all refused.
        let strangers = [(&other, secret(1), 2), (&address, secret(2), 2), (&address, secret(1), 3)];
        let strangers = strangers
            .map(|(address, trust, world)| scope.spawn(move || connect(address, &trust, 1, world, short)));
        for stranger in strangers {
            let fault =
                stranger.join().ok().and_then(Result::err).map(|it| it.to_string()).unwrap_or_default();
            assert!(
                fault.contains("another job, or with another secret or another version of hir, listens at"),
                "{fault}"
            );
        }
        assert!(connect(&address, &secret(1), 1, 2, patience).is_ok_and(|it| it.len() == 1));
        assert!(first.join().is_ok_and(|it| it.is_ok_and(|it| it.len() == 1)));
        Ok(())
    })
}

/// Two ranks meet while other connections send nothing, send single bytes slowly, or send arbitrary bytes.
#[test]
fn strangers_cost_no_time_and_no_place() -> io::Result<()> {
    let address = free("127.0.0.1")?;
    let over = AtomicBool::new(false);
    let patience = Duration::from_secs(5);
    thread::scope(|scope| {
        let start = Instant::now();
        let first = scope.spawn(|| connect(&address, &secret(1), 0, 2, patience));
        let mut silent: Vec<TcpStream> = (0..300).map(|_| dial_blindly(&address)).collect();
        scope.spawn(|| {
            while !over.load(Ordering::Relaxed) {
                if let Ok(mut it) = TcpStream::connect(("127.0.0.1", address.port)) {
                    let _ = it.write_all(&[b'x'; 4096]);
                }
                thread::sleep(Duration::from_millis(2));
            }
        });
        thread::sleep(Duration::from_millis(300));
        silent.iter_mut().skip(200).for_each(|it| drop(it.write_all(b"h")));
        let second = connect(&address, &secret(1), 1, 2, patience);
        let took = start.elapsed();
        over.store(true, Ordering::Relaxed);
        assert!(second.is_ok_and(|it| it.len() == 1));
        assert!(first.join().is_ok_and(|it| it.is_ok()));
        assert!(took < Duration::from_secs(3), "{took:?}");
        Ok(())
    })
}

/// The error names the ranks that did not join and the connections that were not admitted, at the deadline.
#[test]
fn a_deadline_holds_against_anyone() -> io::Result<()> {
    let address = free("127.0.0.1")?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let start = Instant::now();
        let zero = scope.spawn(|| connect(&address, &secret(1), 0, 3, Duration::from_secs(2)));
        let one = scope.spawn(|| connect(&address, &secret(1), 1, 3, Duration::from_secs(2)));
        scope.spawn(|| {
            let mut held = Vec::new();
            while !over.load(Ordering::Relaxed) {
                held.extend(TcpStream::connect(("127.0.0.1", address.port)));
                thread::sleep(Duration::from_millis(20));
            }
        });
        let fault =
            |it: Result<Vec<Connection>, LaunchError>| it.err().map(|it| it.to_string()).unwrap_or_default();
        let zero = zero.join().map(fault).unwrap_or_default();
        let one = one.join().map(fault).unwrap_or_default();
        let took = start.elapsed();
        over.store(true, Ordering::Relaxed);
        assert!(
            zero.contains("ranks [2] of 3 did not join; ") && zero.contains(" did not authenticate"),
            "{zero}"
        );
        assert_eq!(zero, one);
        assert!(took < Duration::from_secs(4), "{took:?}");
        Ok(())
    })
}

#[test]
fn a_rank_that_leaves_early_or_comes_twice_is_named() -> io::Result<()> {
    let join = |address: &Address| {
        let key = || Ok((address.key(Secret::from_bytes([1; 32]), 3), None));
        dial::dial(address, 1, 3, (Instant::now() + Duration::from_secs(5), &|| None), key)
    };
    for twice in [false, true] {
        let address = free("127.0.0.1")?;
        thread::scope(|scope| {
            let zero = scope.spawn(|| connect(&address, &secret(1), 0, 3, Duration::from_secs(10)));
            let first = join(&address);
            let second = twice.then(|| join(&address));
            if !twice {
                thread::sleep(Duration::from_millis(100));
                drop(first);
            }
            let fault = zero.join().ok().and_then(Result::err);
            if twice {
                let fault = fault.map(|it| it.to_string()).unwrap_or_default();
                assert!(fault.contains("two processes claim to be rank 1"), "{fault}");
            } else {
                assert_eq!(fault, Some(LaunchError::Gone { rank: 1 }))
            }
            drop(second);
        });
    }
    Ok(())
}

/// Rank 0 is stopped: its host accepts connections, and the process sends nothing.
#[test]
fn a_rank_0_that_does_not_answer_is_named() -> io::Result<()> {
    let address = free("127.0.0.1")?;
    let listener = TcpListener::bind(("127.0.0.1", address.port))?;
    let fault = connect(&address, &secret(1), 2, 3, Duration::from_secs(1)).err().map(|it| it.to_string());
    let port = address.port;
    let wanted = format!(
        "rendezvous at 127.0.0.1:{port}: rank 2 of 3 did not find rank 0: 127.0.0.1:{port} accepts the connection and does not \
         answer: rank 0 is stopped or busy, or it is not a process of hir"
    );
    assert_eq!(fault, Some(wanted));
    // Rank 0 admits the rank and is then stopped.
    thread::scope(|scope| {
        let rank = scope.spawn(|| connect(&address, &secret(1), 2, 3, Duration::from_secs(1)));
        let key = address.key(Secret::from_bytes([1; 32]), 3);
        loop {
            let (mut stream, _) = listener.accept()?;
            let mut hello = [0; HELLO_BYTES];
            if stream.read_exact(&mut hello).is_err() {
                continue;
            }
            let Ok((2, answer, _, mut opener)) = session::answer(&key, &hello) else { continue };
            if stream.write_all(&answer).is_err() {
                continue;
            }
            let Ok(Message::Join) = opener.read(&mut stream) else { continue };
            let fault = rank.join().ok().and_then(Result::err).map(|it| it.to_string()).unwrap_or_default();
            assert!(fault.contains("rank 0 admitted rank 2 and then sent nothing for 3 s"), "{fault}");
            // If rank 0 continues, it learns that the rank gave up.
            let said = opener.read(&mut stream)?;
            assert!(matches!(said, Message::Fault(LaunchError::Rendezvous { .. })), "{said:?}");
            return Ok::<_, io::Error>(());
        }
    })?;
    // Rank 0 gives up before it has read that the rank joins.
    thread::scope(|scope| {
        let rank = scope.spawn(|| connect(&address, &secret(1), 2, 3, Duration::from_secs(5)));
        let key = address.key(Secret::from_bytes([1; 32]), 3);
        let (mut stream, _) = listener.accept()?;
        let mut hello = [0; HELLO_BYTES];
        stream.read_exact(&mut hello)?;
        let answer = session::answer(&key, &hello).map(|it| it.1).map_err(io::Error::other)?;
        stream.write_all(&answer)?;
        stream.read_exact(&mut [0; JOIN_BYTES])?;
        drop(stream);
        let fault = rank.join().ok().and_then(Result::err);
        let text = fault.as_ref().map(LaunchError::to_string).unwrap_or_default();
        assert!(text.starts_with("rank 0 is silent: its connection closed"), "{text}");
        assert_eq!(fault.map(|it| it.exit()), Some(hir_process::exit::FailureExit::HANG));
        Ok(())
    })
}

/// A process that poses as rank 0 learns nothing but the rank that wants to join.
#[test]
fn an_impostor_learns_nothing() -> io::Result<()> {
    let address = free("127.0.0.1")?;
    let listener = TcpListener::bind(("127.0.0.1", address.port))?;
    thread::scope(|scope| {
        let rank = scope.spawn(|| connect(&address, &secret(1), 1, 2, Duration::from_secs(2)));
        listener.set_nonblocking(true)?;
        while !rank.is_finished() {
            let Ok((mut stream, _)) = listener.accept() else {
                thread::sleep(Duration::from_millis(5));
                continue;
            };
            stream.set_nonblocking(false)?;
            let mut hello = [0; HELLO_BYTES];
            stream.read_exact(&mut hello)?;
            // A well-formed answer, made without the secret.
            let other = address.key(Secret::from_bytes([2; 32]), 2);
            assert!(session::answer(&other, &hello).is_err());
            if let Ok((_, forged)) = Initiator::new(&other, 1) {
                stream.write_all(&forged[HELLO_BYTES - ANSWER_BYTES..])?;
            }
            let mut rest = Vec::new();
            stream.read_to_end(&mut rest)?;
            assert!(rest.is_empty());
        }
        let fault = rank.join().ok().and_then(Result::err).map(|it| it.to_string()).unwrap_or_default();
        assert!(fault.contains("another job, or with another secret"), "{fault}");
        Ok(())
    })
}

/// torchrun's run id is `none` if the user sets none, and each job also tries the ports after its own.
#[test]
fn jobs_with_neighbouring_ports_do_not_mix() -> io::Result<()> {
    let base = (30_000..32_000)
        .step_by(40)
        .find(|port| (0..20).all(|more| TcpListener::bind(("127.0.0.1", port + more)).is_ok()));
    let launch = LaunchInfo {
        launcher: "torchrun",
        world: 2,
        local_size: Some(2),
        job: Some("none 0".to_owned()),
        ..launch()
    };
    let base = base.unwrap_or(30_000);
    let start = |rank: usize, port: u16| {
        let port = port.to_string();
        let set = |name: &str| (name == "MASTER_PORT").then(|| port.clone());
        let address = address(&launch, set)?;
        let trust = SecretSource::from_environment(&address, set)?;
        connect(&address, &trust, rank, 2, Duration::from_secs(10))
    };
    let start = &start;
    thread::scope(|scope| {
        // Rank 1 of the second job starts while only rank 0 of the first job listens.
        let first = scope.spawn(move || start(0, base));
        let strayed = scope.spawn(move || start(1, base + 1));
        thread::sleep(Duration::from_millis(500));
        assert!(!first.is_finished() && !strayed.is_finished());
        let second = scope.spawn(move || start(0, base + 1));
        let both = [strayed, second].map(|it| it.join().is_ok_and(|it| it.is_ok_and(|it| it.len() == 1)));
        assert_eq!(both, [true; 2]);
        assert!(!first.is_finished());
        let own = start(1, base);
        assert!(own.is_ok() && first.join().is_ok_and(|it| it.is_ok()));
    });
    Ok(())
}
