//! Processes at a [`Reception`] that are not those that are lost, or do not speak as they do: the log has a
//! line for each, and the lost ranks come back beside them.

use std::any::Any;
use std::fmt::{Debug, Write as _};
use std::io::Write as _;
use std::net::TcpStream;
use std::sync::{Arc, Mutex, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

use super::tests::{WORLD_SIZE, job, member};
use super::*;
use crate::bootstrap::call::Call;
use crate::bootstrap::channel::wait_for;
use crate::bootstrap::proof::OPENING_BYTES;
use crate::bootstrap::{Comeback, JobKey, come_back};

/// Only a hang reaches it.
const AMPLE: Duration = Duration::from_secs(60);

/// A process of this rank and incarnation of the job.
type Job<'a> = &'a dyn Fn(u32, u32) -> Identity;

/// What a process does before the lost ranks come. What it returns is kept until they are back.
type Visitor = fn(Job<'_>) -> Box<dyn Any>;

/// The warnings of one thread.
#[derive(Clone, Default)]
struct Lines(Arc<Mutex<Vec<String>>>);

struct Line(String);

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn Debug) {
        if field.name() == "message" {
            write!(self.0, "{value:?}").unwrap();
        }
    }
}

impl Subscriber for Lines {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() <= Level::WARN
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line(String::new());
        event.record(&mut line);
        self.0.lock().unwrap().push(line.0);
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

/// A connection of one that holds the key and says that it is this rank.
fn proven(identity: &Identity, rank: u32) -> Channel {
    let (place, party) = at_the_place_of_return(identity, Rank(rank)).unwrap();
    let (deadline, to) = (Deadline::after(AMPLE), resolve(&place.master, &Deadline::after(AMPLE)).unwrap());
    let mut call = Call::new(&party, Purpose::Return, 0, to);
    loop {
        if let Some((_, channel)) = call.turn().unwrap() {
            return channel;
        }
        assert!(!deadline.passed(), "nobody answers");
        wait_for(&[], call.channel_mut().into_iter(), Duration::from_millis(5));
    }
}

/// Says this, and waits until the listener has hung up.
fn say(job: Job<'_>, rank: u32, words: &[u8]) -> Box<dyn Any> {
    let (mut channel, start) = (proven(&job(rank, 1), rank), Instant::now());
    channel.queue(words);
    while !channel.ended() {
        assert!(start.elapsed() < AMPLE, "rank {rank} is still connected");
        wait_for(&[], [&mut channel].into_iter(), Duration::from_millis(5));
        channel.pump(OPENING_BYTES);
        channel.discard();
    }
    Box::new(())
}

/// Comes back, and is refused with an error of which this is a part.
fn is_told(identity: &Identity, expected: &str) -> Box<dyn Any> {
    let error = come_back(identity).map(drop).unwrap_err().to_string();
    assert!(error.contains(expected) && error.lines().count() == 1, "{error}");
    Box::new(())
}

fn of_another_key(job: Job<'_>) -> Box<dyn Any> {
    is_told(&Identity { key: Some(JobKey::generate().unwrap()), ..job(2, 1) }, "key")
}

fn of_another_world(job: Job<'_>) -> Box<dyn Any> {
    is_told(&Identity { world_size: WORLD_SIZE + 1, ..job(2, 1) }, "world size")
}

fn of_another_job(job: Job<'_>) -> Box<dyn Any> {
    is_told(&Identity { job: "another".into(), ..job(2, 1) }, "job")
}

fn of_no_rank(job: Job<'_>) -> Box<dyn Any> {
    say(job, WORLD_SIZE, &[])
}

/// As a rank does that does not know that it is not lost.
fn of_a_rank_that_is_there(job: Job<'_>) -> Box<dyn Any> {
    let frame = Frame::Blob(AMPLE, 1_u32.to_le_bytes().to_vec()).encode();
    (0..3).for_each(|_| drop(say(job, 1, &frame)));
    Box::new(())
}

fn that_sends_noise(job: Job<'_>) -> Box<dyn Any> {
    say(job, 3, &[0x5a; 5000])
}

fn that_announces_far_too_much(job: Job<'_>) -> Box<dyn Any> {
    say(job, 3, &[3, 0xff, 0xff, 0xff, 0xff])
}

fn that_says_no_incarnation(job: Job<'_>) -> Box<dyn Any> {
    say(job, 3, &Frame::Blob(AMPLE, vec![1; 5]).encode())
}

fn that_speaks_as_the_listener(job: Job<'_>) -> Box<dyn Any> {
    say(job, 3, &Frame::Gathered(vec![7; 100]).encode())
}

fn that_speaks_twice(job: Job<'_>) -> Box<dyn Any> {
    let frame = Frame::Blob(AMPLE, 1_u32.to_le_bytes().to_vec()).encode();
    say(job, 3, &[&frame[..], &frame].concat())
}

fn that_is_silent(job: Job<'_>) -> Box<dyn Any> {
    say(job, 3, &[])
}

/// They prove nothing, and stay: at debug level, as strangers of no job are.
fn strangers(job: Job<'_>) -> Box<dyn Any> {
    let words = [&b""[..], b"GET / HTTP/1.1\r\n\r\n", b"BREVITY\x01", &[0; 5000]];
    let connect = |number: usize| {
        let mut stream = TcpStream::connect(("127.0.0.1", job(0, 0).master.port)).unwrap();
        // The listener may have hung up.
        let _ = stream.write_all(words[number % words.len()]);
        stream
    };
    Box::new((0..200).map(connect).collect::<Vec<_>>())
}

/// Receives ranks 2 and 3, after the visit; gives what is logged.
fn receive(visit: Visitor) -> Vec<String> {
    let ((_holder, identity), lines) = (job(), Lines::default());
    let [left, lost] = [[member(0, 0), member(1, 0)], [member(2, 0), member(3, 0)]];
    let mut reception = Reception::open(&identity(0, 0)).unwrap();
    thread::scope(|threads| {
        let identity = &identity;
        let visitor = threads.spawn(move || {
            let kept = visit(identity);
            let back = [2, 3].map(|rank| threads.spawn(move || come_back(&identity(rank, 1)).unwrap()));
            let back = back.map(|back| back.join().unwrap());
            drop(kept);
            back
        });
        let invitation = tracing::subscriber::with_default(lines.clone(), || {
            reception.wait(|| lost.to_vec(), AMPLE, || false);
            reception.invite(&left, &lost).unwrap().unwrap()
        });
        let expected = [member(0, 0), member(1, 0), member(2, 1), member(3, 1)];
        assert_eq!(invitation.members().iter().map(|(member, _)| *member).collect::<Vec<_>>(), expected);
        for back in visitor.join().unwrap() {
            assert!(matches!(back, Comeback::Invited(told) if told.1 == invitation));
        }
        invitation.forget();
    });
    let lines = lines.0.lock().unwrap();
    lines.clone()
}

#[test]
fn each_is_refused_by_one_line_and_the_lost_come_back() {
    let sent = |what: &str| format!("a rank that would come back has sent {what}: hung up");
    let key = "turned away a caller that does not hold the key of this job";
    let cases: [(Visitor, String); 11] = [
        (of_another_key, key.into()),
        (of_another_world, "turned away a rank that differs".into()),
        (of_another_job, "turned away a rank that differs".into()),
        (of_no_rank, "turned away a rank that this world does not have".into()),
        (of_a_rank_that_is_there, "a rank that is still there would come back".into()),
        (that_sends_noise, sent("an invalid frame")),
        (that_announces_far_too_much, sent("an invalid frame")),
        (that_says_no_incarnation, sent("no incarnation")),
        (that_speaks_as_the_listener, sent("a frame that was not expected")),
        (that_speaks_twice, sent("a frame that was not expected")),
        (that_is_silent, sent("nothing")),
    ];
    thread::scope(|threads| {
        let received = cases.map(|(visit, expected)| (threads.spawn(move || receive(visit)), expected));
        for (lines, expected) in received {
            assert_eq!(lines.join().unwrap(), [expected]);
        }
    });
}

#[test]
fn strangers_do_not_keep_the_lost_away() {
    let start = Instant::now();
    assert_eq!(receive(strangers), [""; 0]);
    assert!(start.elapsed() < AMPLE / 2, "{:?}", start.elapsed());
}

#[test]
fn of_two_processes_of_a_rank_one_is_taken() {
    let ((_holder, identity), (sender, ended)) = (job(), mpsc::channel());
    let [left, lost] = [[member(0, 0), member(1, 0)], [member(2, 0), member(3, 0)]];
    let mut reception = Reception::open(&identity(0, 0)).unwrap();
    thread::scope(|threads| {
        let identity = &identity;
        let come = |rank: u32| {
            let sender = sender.clone();
            threads.spawn(move || sender.send((rank, come_back(&identity(rank, 1)))).unwrap())
        };
        let (_first, _second) = (come(2), come(2));
        let third = threads.spawn({
            let sender = sender.clone();
            // When one of the two was refused.
            move || {
                let (rank, refused) = ended.recv_timeout(AMPLE).unwrap();
                let refused = refused.map(drop).unwrap_err().to_string();
                assert_eq!(rank, 2);
                assert!(refused.contains("rank 2 has two that come back, expected one process"), "{refused}");
                sender.send((3, come_back(&identity(3, 1)))).unwrap();
                ended
            }
        });
        reception.wait(|| lost.to_vec(), AMPLE, || false);
        let invitation = reception.invite(&left, &lost).unwrap().unwrap();
        let ended = third.join().unwrap();
        for _ in 0..2 {
            let (rank, back) = ended.recv_timeout(AMPLE).unwrap();
            assert!(matches!(back, Ok(Comeback::Invited(told)) if told.1 == invitation), "rank {rank}");
        }
        invitation.forget();
    });
}
