//! Pipes between threads, and what is said to be pipes and is none.

use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::neighbourhood::Neighbourhood;
use super::pipes::{Attempt, Inlet, Outlet, PIPED_BYTES, PIPES};

/// Where a block says which pipes they are; any line would do.
const AT: usize = 1024;

/// What the rank at place 1 receives through, and what the one at place 0 sends through.
struct Pair {
    world: Vec<Arc<Neighbourhood>>,
    inlet: Attempt<Inlet>,
    outlet: Attempt<Outlet>,
}

impl Pair {
    fn new(ranks: u32) -> Self {
        let world = Neighbourhood::in_process(ranks).unwrap();
        Self { world, inlet: Attempt::default(), outlet: Attempt::default() }
    }

    fn invite(&mut self) -> bool {
        self.outlet.invite(&self.world[1], 0, AT).is_some()
    }

    fn find(&mut self) -> Option<&Inlet> {
        self.inlet.find(&self.world[0], 1, AT)
    }

    fn word(&self) -> u64 {
        self.world[0].peer_block(1).unwrap().load(AT)
    }
}

#[test]
fn bytes_arrive_once_there_are_pipes() {
    let mut pair = Pair::new(2);
    assert!(pair.find().is_none(), "there are none yet");
    assert!(pair.invite());
    let all: Vec<u8> = (0..PIPED_BYTES as u32 + 64).map(|index| ((index * 31) >> 3) as u8).collect();
    let pieces = [(0, 1), (5, 4096), (17, PIPED_BYTES), (63, 65_537), (0, 0), (1, PIPED_BYTES - 1)];
    for (index, (start, bytes)) in pieces.into_iter().enumerate() {
        assert!(pair.find().unwrap().put(index, &all[start..start + bytes]));
        // It is copied to a place that does not begin where a page does.
        let mut found = vec![0; bytes + 3];
        assert!(pair.outlet.get().unwrap().read(index, &mut found[3..]));
        assert_eq!(found[3..], all[start..start + bytes], "{bytes} bytes from {start} on");
    }
}

#[test]
fn fewer_bytes_than_are_wanted_are_not_read() {
    let mut pair = Pair::new(2);
    assert!(pair.invite());
    assert!(!pair.outlet.get().unwrap().read(0, &mut [0; 8]));
    assert!(pair.find().unwrap().put(0, &[1; 7]));
    assert!(!pair.outlet.get().unwrap().read(0, &mut [0; 8]));
}

/// It would end a process that does not ignore the signal.
#[test]
fn a_pipe_whose_receiver_has_gone_is_not_broken() {
    let mut pair = Pair::new(2);
    assert!(pair.invite());
    assert!(pair.find().is_some());
    pair.outlet = Attempt::Untried;
    let memory = vec![3; PIPED_BYTES];
    let inlet = pair.find().unwrap();
    assert!((0..PIPES).all(|index| inlet.put(index, &[2; 100])));
    let is_full = (0..100).any(|index| !inlet.put(index, &memory));
    assert!(is_full, "nobody takes anything out, and nobody waits");
}

#[test]
fn what_is_no_pipe_is_not_put_into() {
    let number = |descriptor: &dyn AsRawFd| u64::from(descriptor.as_raw_fd().cast_unsigned()) + 1;
    let null = std::fs::File::open("/dev/null").unwrap();
    let (out, into) = std::io::pipe().unwrap();
    let (other_out, other_into) = std::io::pipe().unwrap();
    let said = [
        u64::MAX,
        5,
        7 << 32,
        ((1 << 31) | (1 << 63)) + 1,
        0x4000_0000_4000_0000,
        number(&null) << 32 | number(&null),
        // What is read there would be written into the memory that is sent.
        number(&into) << 32 | number(&out),
        number(&out) << 32 | number(&other_out),
        number(&other_into) << 32 | number(&into),
        number(&out) << 32 | number(&other_into),
    ];
    for word in said {
        let mut pair = Pair::new(2);
        let block = pair.world[1].own_block(0).unwrap();
        (0..PIPES).for_each(|index| block.word(AT + 8 * index).store(word, Ordering::Release));
        assert!(pair.find().is_none(), "{word:#x}");
        assert!(pair.invite());
        assert!(pair.find().is_none(), "it is not asked again");
    }
}

#[test]
fn who_closes_its_pipes_says_so_before() {
    let mut pair = Pair::new(2);
    assert!(pair.invite());
    assert_ne!(pair.word(), 0);
    pair.outlet = Attempt::Untried;
    assert_eq!(pair.word(), 0);
    assert!(pair.find().is_none());
}

#[test]
fn many_ranks_have_no_pipes() {
    for (ranks, has) in [(8, true), (9, false)] {
        let mut pair = Pair::new(ranks);
        assert_eq!(pair.invite(), has, "{ranks} ranks");
        assert_eq!(pair.word() != 0, has, "{ranks} ranks");
    }
}
