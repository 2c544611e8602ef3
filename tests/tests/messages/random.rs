//! Messages of random lengths among five ranks in random order, beside collectives.
//!
//! Continuous integration sends a few on every wire; `BREVITY_MESSAGES` sets another number
//! (`ci/exhaustive.sh`: 100,000). The oracle is the plan: who sends what to whom, in which order. All ranks
//! draw it from one seed. A message's bytes follow from its number in the plan.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Duration;

use brevity::collectives::{Error, Message, Result};
use brevity::{Group, ReduceOp};
use brevity_testing::{Wire, on_every_wire};
use brevity_tests::on_transports;

pub const RANKS: u32 = 5;
const FEW: usize = 1000;
const TAGS: [u32; 4] = [0, 1, 77, (1 << 31) - 1];

/// The longest message.
pub const LONGEST: usize = 2_000_000;

on_every_wire! {
    random_messages => |wire: Wire| drop(on_transports(wire.world(RANKS), rank));
}

/// A generator of random numbers that all ranks can repeat.
pub struct Draws(pub u64);

impl Draws {
    fn below(&mut self, limit: usize) -> usize {
        self.0 = self.0.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(0x1405_7b7e_f767_814f);
        (self.0 >> 33) as usize % limit
    }
}

#[derive(Clone, Copy, Debug)]
pub struct Planned {
    pub from: u32,
    pub to: u32,
    pub tag: u32,
    length: usize,
}

impl Planned {
    pub fn draw(draws: &mut Draws) -> Self {
        let (from, to) = (draws.below(RANKS as usize) as u32, draws.below(RANKS as usize) as u32);
        let most = match draws.below(100) {
            0..50 => 200,
            50..90 => 5000,
            90..98 => 50_000,
            98 => 1_000_000,
            _ => LONGEST,
        };
        Self { from, to, tag: TAGS[draws.below(TAGS.len())], length: 4 + draws.below(most - 3) }
    }

    /// The bytes of the message of this number in the plan.
    pub fn bytes(&self, number: usize) -> Vec<u8> {
        let mut bytes: Vec<u8> = (0..self.length).map(|index| (index * 7 + number) as u8).collect();
        bytes.iter_mut().zip((number as u32).to_le_bytes()).for_each(|(byte, own)| *byte = own);
        bytes
    }
}

fn rank(group: &Group) {
    let number = std::env::var("BREVITY_MESSAGES").ok().map(|number| number.parse().unwrap());
    let number = number.unwrap_or(FEW);
    let mut draws = Draws(11);
    let plan: Vec<Planned> = (0..number).map(|_| Planned::draw(&mut draws)).collect();
    let receiver = Receiver::new(group, &plan);
    thread::scope(|threads| {
        threads.spawn(|| send_all(group, &plan));
        threads.spawn(|| {
            for turn in 0..number / 20 {
                let mut data = vec![turn as u64; 1 + turn % 3 * 1000];
                group.all_reduce(&mut data, ReduceOp::Sum).unwrap();
                assert!(data.iter().all(|sum| *sum == turn as u64 * u64::from(RANKS)));
            }
        });
        // Two threads take what comes; with one, more ways of receiving have a known result.
        let is_alone = group.rank().is_multiple_of(2);
        if !is_alone {
            threads.spawn(|| receiver.receive_all(Draws(100), false));
        }
        receiver.receive_all(Draws(u64::from(group.rank())), is_alone);
    });
    assert!(receiver.expected.lock().unwrap().values().all(VecDeque::is_empty));
    group.barrier().unwrap();
    assert_eq!(group.try_probe(None, None).unwrap(), None);
}

fn send_all(group: &Group, plan: &[Planned]) {
    let mut draws = Draws(u64::from(group.rank()) + 1000);
    let mut started = VecDeque::new();
    for (number, planned) in plan.iter().enumerate().filter(|(_, planned)| planned.from == group.rank()) {
        let (bytes, to, tag) = (planned.bytes(number), planned.to, planned.tag);
        match draws.below(4) {
            0 | 1 => group.send(&bytes, to, tag).unwrap(),
            2 => {
                while !group.try_send(&bytes, to, tag).unwrap() {
                    thread::yield_now();
                }
            }
            _ => started.push_back(group.start_send(bytes, to, tag)),
        }
        if started.len() > 20 {
            started.pop_front().unwrap().wait().1.unwrap();
        }
    }
    started.into_iter().for_each(|sent| sent.wait().1.unwrap());
}

/// Receives what the plan has for this rank.
struct Receiver<'a> {
    group: &'a Group,
    plan: &'a [Planned],
    /// By source and tag, the numbers of messages to come, in order.
    expected: Mutex<BTreeMap<(u32, u32), VecDeque<usize>>>,
    /// Messages that no thread has begun to receive.
    left: AtomicUsize,
}

impl<'a> Receiver<'a> {
    fn new(group: &'a Group, plan: &'a [Planned]) -> Self {
        let mut expected = BTreeMap::<_, VecDeque<usize>>::new();
        let mine = plan.iter().enumerate().filter(|(_, planned)| planned.to == group.rank());
        let mut left = 0;
        for (number, planned) in mine {
            expected.entry((planned.from, planned.tag)).or_default().push_back(number);
            left += 1;
        }
        Self { group, plan, expected: Mutex::new(expected), left: AtomicUsize::new(left) }
    }

    fn receive_all(&self, mut draws: Draws, is_alone: bool) {
        let mut last = BTreeMap::new();
        while self.left.fetch_update(Ordering::Relaxed, Ordering::Relaxed, |left| left.checked_sub(1)).is_ok()
        {
            let (message, data) = loop {
                let way = draws.below(if is_alone { 6 } else { 2 });
                if let Some(received) = self.receive(way, &mut draws) {
                    break received;
                }
            };
            let number = self.check(message, &data, is_alone);
            // Those of one source and tag that a thread gets are in the order of sending.
            let before = last.insert((message.source, message.tag), number);
            assert!(before.is_none_or(|before| before < number), "{before:?} before {number}");
        }
    }

    /// Receives a message in one of several ways; `None` if that has found none.
    fn receive(&self, way: usize, draws: &mut Draws) -> Option<(Message, Vec<u8>)> {
        let (group, mut data) = (self.group, vec![0u8; draws.below(9)]);
        let soft = group.with_timeout(Duration::from_micros(draws.below(2000) as u64));
        let (source, tag) = (draws.below(RANKS as usize) as u32, TAGS[draws.below(TAGS.len())]);
        let received = match way {
            0 => group.recv_vec(&mut data, LONGEST, None, None),
            1 => {
                let (received, result) = group.start_recv_vec(data, LONGEST, None, None).wait();
                data = received;
                result
            }
            2 => group.probe(None, None).and_then(|found| {
                data = vec![0; found.bytes];
                group
                    .recv(&mut data, found.source, found.tag)
                    .inspect(|received| assert_eq!(*received, found))
            }),
            3 => soft.recv_vec(&mut data, LONGEST, source, None),
            4 => {
                data = vec![0; LONGEST];
                soft.recv(&mut data, source, tag)
            }
            _ => match group.try_probe(None, tag).unwrap() {
                None => return None,
                Some(found) => group.recv_vec(&mut data, found.bytes, found.source, tag),
            },
        };
        let message = not_in_time(received)?;
        data.truncate(message.bytes);
        Some((message, data))
    }

    /// Returns the number of a message that was received.
    fn check(&self, message: Message, data: &[u8], is_alone: bool) -> usize {
        let mut expected = self.expected.lock().unwrap();
        let queue = expected.get_mut(&(message.source, message.tag)).unwrap();
        let is_it =
            |number: &usize| data.len() == message.bytes && *data == self.plan[*number].bytes(*number);
        // Another thread may have received an earlier one, and not checked it yet.
        let position = queue.iter().take(if is_alone { 1 } else { 3 }).position(is_it);
        let position = position.unwrap_or_else(|| panic!("{message:?} is not {:?}", queue.front()));
        queue.remove(position).unwrap()
    }
}

/// The message, unless none has come in time.
fn not_in_time(received: Result<Message>) -> Option<Message> {
    match received {
        Err(Error::MessageTimeout { .. }) => None,
        received => Some(received.unwrap()),
    }
}
