//! The line protocol against a launcher of the test's own: what is asked, in which order, and what is made of
//! the answers.
#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::io::{BufRead, BufReader, Write};
use std::os::fd::AsRawFd;
use std::os::unix::net::UnixStream;
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use brevity_pmi::wire::{share, share_over};
use brevity_pmi::{Error, MAX_TEXT_BYTES};
use proptest::prelude::*;

/// Only a hang reaches it.
const AMPLE: Duration = Duration::from_secs(60);

fn ample() -> Instant {
    Instant::now() + AMPLE
}

/// A launcher that answers the questions in this order and no more; at the rank's end it returns what it was
/// asked.
fn launcher(answers: Vec<String>) -> (UnixStream, JoinHandle<Vec<String>>) {
    let (rank, server) = UnixStream::pair().unwrap();
    let thread = thread::spawn(move || {
        let mut questions = BufReader::new(server.try_clone().unwrap()).lines();
        let mut asked = Vec::new();
        for answer in answers {
            let Some(Ok(question)) = questions.next() else { break };
            asked.push(question);
            (&server).write_all(answer.as_bytes()).unwrap();
        }
        asked.extend(questions.map_while(Result::ok));
        asked
    });
    (rank, thread)
}

/// What a launcher says when all is well; rank 0 gets no value.
fn answers(value: Option<&str>) -> Vec<String> {
    let get = value.map(|value| format!("cmd=get_result rc=0 msg=success value={value}\n"));
    let put = value.is_none().then(|| "cmd=put_result rc=0 msg=success\n".to_owned());
    let head = [
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n",
        "cmd=maxes kvsname_max=256 keylen_max=64 vallen_max=1024\n",
        "cmd=my_kvsname kvsname=kvs_17_0\n",
    ];
    let head = head.map(str::to_owned).into_iter().chain(put);
    head.chain(["cmd=barrier_out\n".to_owned()]).chain(get).chain(["cmd=finalize_ack\n".to_owned()]).collect()
}

#[test]
fn rank_0_stores_and_the_others_read() {
    let (rank, server) = launcher(answers(None));
    assert_eq!(share_over(&rank, Some("1,4000,10.0.0.7"), ample()).unwrap(), "1,4000,10.0.0.7");
    drop(rank);
    let asked = server.join().unwrap();
    assert_eq!(asked[3], "cmd=put kvsname=kvs_17_0 key=brevity-rendezvous value=1,4000,10.0.0.7");
    let names = |asked: &[String]| {
        asked
            .iter()
            .map(|line| line.split(' ').next().unwrap()["cmd=".len()..].to_owned())
            .collect::<Vec<_>>()
            .join(" ")
    };
    assert_eq!(names(&asked), "init get_maxes get_my_kvsname put barrier_in finalize");

    let (rank, server) = launcher(answers(Some("1,4000,10.0.0.7")));
    assert_eq!(share_over(&rank, None, ample()).unwrap(), "1,4000,10.0.0.7");
    drop(rank);
    assert_eq!(names(&server.join().unwrap()), "init get_maxes get_my_kvsname barrier_in get finalize");
}

#[test]
fn a_descriptor_is_copied_and_stays_open() {
    let (rank, server) = launcher(answers(Some("text")));
    assert_eq!(share(rank.as_raw_fd(), None, ample()).unwrap(), "text");
    assert!(rank.local_addr().is_ok(), "the launcher's descriptor was closed");
    drop(rank);
    server.join().unwrap();
    for number in [-1, i32::MAX] {
        assert!(matches!(share(number, None, ample()), Err(Error::System { .. })));
    }
}

#[test]
fn a_launcher_that_refuses_is_quoted() {
    for (at, line, expected) in [
        (0, "cmd=response_to_init rc=-1\n", "init failed: status -1"),
        (1, "cmd=maxes kvsname_max=256 keylen_max=8 vallen_max=1024\n", "expected longer keys and values"),
        (1, "cmd=maxes\n", "expected keylen_max"),
        (2, "cmd=my_kvsname\n", "expected kvsname"),
        (3, "cmd=barrier_out rc=1 msg=broken\n", "barrier failed: broken"),
        (4, "cmd=get_result rc=-1 msg=key_brevity-rendezvous_not_found value=unknown\n", "not_found"),
        (4, "cmd=get_result rc=0\n", "expected value"),
        (4, "cmd=maxes rc=0\n", "expected get_result"),
        (5, "\n", "expected finalize_ack"),
    ] {
        let mut answers = answers(Some("text"));
        answers[at] = line.into();
        let (rank, server) = launcher(answers);
        let error = share_over(&rank, None, ample()).unwrap_err().to_string();
        assert!(error.contains(expected), "{line:?}: {error}");
        drop(rank);
        server.join().unwrap();
    }
}

#[test]
fn a_launcher_that_falls_silent_is_left_at_the_deadline() {
    for known in 0..6 {
        let (rank, server) = launcher(answers(Some("text")).into_iter().take(known).collect());
        let start = Instant::now();
        let outcome = share_over(&rank, None, start + Duration::from_millis(200));
        assert!(matches!(outcome, Err(Error::Late { .. })), "{outcome:?}");
        assert!(start.elapsed() < AMPLE / 2);
        drop(rank);
        assert_eq!(server.join().unwrap().len(), known + 1);
    }
}

#[test]
fn a_launcher_that_goes_away_is_noticed_at_once() {
    let (rank, server) = UnixStream::pair().unwrap();
    drop(server);
    assert!(matches!(share_over(&rank, None, ample()), Err(Error::Closed { .. })));
}

#[test]
fn a_line_without_end_is_refused() {
    let (rank, server) = UnixStream::pair().unwrap();
    let writer = thread::spawn(move || while (&server).write_all(&[b'x'; 4096]).is_ok() {});
    let error = share_over(&rank, None, ample()).unwrap_err();
    assert!(matches!(error, Error::Malformed { call: "init", .. }), "{error}");
    drop(rank);
    writer.join().unwrap();
}

#[test]
fn a_text_that_the_protocol_does_not_carry_is_not_sent() {
    let (rank, server) = UnixStream::pair().unwrap();
    for text in ["", "two words", "a=b", "line\ncmd=abort", &"x".repeat(MAX_TEXT_BYTES + 1)] {
        assert!(matches!(share_over(&rank, Some(text), ample()), Err(Error::Unfit { .. })), "{text:?}");
    }
    server.set_nonblocking(true).unwrap();
    assert!(std::io::Read::read(&mut &server, &mut [0]).is_err(), "something was sent");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]
    #[test]
    fn no_answer_panics(known in 0usize..6, rest in proptest::collection::vec(any::<u8>(), 0..200)) {
        let mut lines: Vec<u8> =
            answers(Some("text")).into_iter().take(known).collect::<String>().into_bytes();
        lines.extend(rest);
        let (rank, server) = UnixStream::pair().unwrap();
        (&server).write_all(&lines).unwrap();
        server.shutdown(std::net::Shutdown::Write).unwrap();
        // Without a whole conversation there is nothing to be had.
        prop_assert!(share_over(&rank, None, ample()).is_err());
    }
}
