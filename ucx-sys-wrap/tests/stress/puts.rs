//! Puts and gets that are awaited, dropped, forgotten or abandoned by a panic at random: no memory is
//! accessed after it was given back, only data that was put arrives, and the last put stays.

use std::sync::Arc;
use std::time::{Duration, Instant};

use ucx_sys_wrap::buffer::{Port, Region, RemoteRegion};
use ucx_sys_wrap::{Mark, Rank};

use super::common::{World, block, run_for};
use super::plan::{Message, Random, Way};
use super::{REUSED, envelope, goes_on, leave, part, seconds_and_seed};

/// The rank that puts and gets, and the owner of the memory.
const VISITOR: Rank = Rank(0);
const OWNER: Rank = Rank(1);

/// No message of a plan is longer.
const REGION_BYTES: usize = 3_000_001;

/// Rounds of random puts and gets for the requested time.
pub fn stress(name: &str, world: World) {
    let (seconds, seed) = seconds_and_seed(&format!("{name}, puts and gets"));
    let end = Instant::now() + Duration::from_secs(seconds);
    let title = format!("{name}, puts and gets, seed {seed}");
    run_for(&title.clone(), Duration::from_secs(seconds + 60), world, move |port| {
        let mut random = Random::new(seed);
        let mut memory = Memory::share(&port);
        // The known contents of the region before a round.
        let mut last = vec![0; REGION_BYTES];
        let mut operations = 0;
        for round in 1.. {
            let groups = random.groups();
            operations += groups.iter().map(Vec::len).sum::<usize>();
            let whole = random.message_of(REGION_BYTES);
            match &mut memory {
                Memory::Theirs(remote) => visit(&port, remote, round, &groups, &last, &whole),
                Memory::Own(region) => host(&port, region, round, &groups, &last, &whole),
            }
            last = whole.bytes();
            if !goes_on(&port, round, Instant::now() < end) {
                println!("{title}: rank {}: {operations} operations in {round} rounds", port.rank());
                return;
            }
        }
    });
}

enum Memory {
    Own(Region<Vec<u8>>),
    Theirs(RemoteRegion),
}

impl Memory {
    /// The owner registers its memory and tells the other rank.
    fn share(port: &Arc<Port>) -> Self {
        if port.rank() == OWNER {
            let region = Region::register(port, vec![0; REGION_BYTES]).unwrap();
            let key = region.key().to_bytes();
            block(port, async |comm| {
                comm.send(VISITOR, envelope(OWNER, 0, 1, Mark::NONE), key).await.unwrap()
            });
            return Self::Own(region);
        }
        let tag = envelope(OWNER, 0, 1, Mark::NONE);
        let (mut key, arrived) =
            block(port, async |comm| comm.recv(OWNER, tag, vec![0u8; 16 << 10]).await.unwrap());
        key.truncate(arrived.lengths[0]);
        Self::Theirs(RemoteRegion::open(port, OWNER, &key).unwrap())
    }
}

/// In each group every other message is put, and the rest are buffers for gets; at the end all of the region
/// is put.
fn visit(
    port: &Arc<Port>,
    remote: &RemoteRegion,
    round: u32,
    groups: &[Vec<Message>],
    last: &[u8],
    whole: &Message,
) {
    let possible = Possible::new(groups, last);
    let mut memory: Vec<Vec<Vec<u8>>> =
        groups.iter().map(|group| group.iter().map(Message::bytes).collect()).collect();
    for (group, memory) in groups.iter().zip(&mut memory) {
        leave(|| {
            block(port, async |comm| {
                let (mut puts, mut gets) = (Vec::new(), Vec::new());
                for (bytes, message) in memory.iter_mut().zip(group) {
                    let bytes = &mut bytes[..];
                    if is_put(message) {
                        puts.push((comm.put(remote, 0, &*bytes), message));
                    } else {
                        gets.push((comm.get(remote, 0, bytes), message));
                    }
                }
                for (put, message) in puts {
                    part(port, put, message.sent, turns(message), |put| assert!(put.is_ok()));
                }
                for (get, message) in gets {
                    part(port, get, message.sent, turns(message), |got| possible.check(got.unwrap().0));
                }
            });
        });
        // Nothing of this may be put any more, and no get may write here.
        memory.iter_mut().for_each(|bytes| bytes.fill(REUSED));
    }
    block(port, async |comm| {
        comm.put(remote, 0, whole.bytes()).await.unwrap();
        comm.flush(OWNER).await.unwrap();
        comm.send(OWNER, envelope(VISITOR, round, 0, Mark::NONE), ()).await.unwrap();
        comm.recv(OWNER, envelope(OWNER, round, 1, Mark::NONE), ()).await.unwrap();
    });
    assert!(
        memory.iter().flatten().flatten().all(|byte| *byte == REUSED),
        "memory was written after its return"
    );
}

/// Serves its memory, and checks its contents from time to time.
fn host(
    port: &Arc<Port>,
    region: &mut Region<Vec<u8>>,
    round: u32,
    groups: &[Vec<Message>],
    last: &[u8],
    whole: &Message,
) {
    let whole = whole.bytes();
    let possible = Possible { whole: Some(&whole), ..Possible::new(groups, last) };
    let mut found = vec![0; REGION_BYTES];
    region.read(0, &mut found).unwrap();
    possible.check(&found);
    block(port, async |comm| {
        comm.recv(VISITOR, envelope(VISITOR, round, 0, Mark::NONE), ()).await.unwrap();
    });
    for _ in 0..2 {
        region.read(0, &mut found).unwrap();
        assert!(found == whole, "what was put last is not what is there");
        for _ in 0..20 {
            port.progress();
        }
    }
    block(port, async |comm| comm.send(VISITOR, envelope(OWNER, round, 1, Mark::NONE), ()).await.unwrap());
}

fn is_put(message: &Message) -> bool {
    message.recv_turns.is_multiple_of(2)
}

fn turns(message: &Message) -> u32 {
    if message.sent == Way::Await { u32::MAX } else { message.send_turns }
}

/// The possible contents of the region during a round, byte by byte.
struct Possible<'a> {
    puts: Vec<Vec<u8>>,
    last: &'a [u8],
    whole: Option<&'a [u8]>,
}

impl<'a> Possible<'a> {
    fn new(groups: &[Vec<Message>], last: &'a [u8]) -> Self {
        let puts = groups.iter().flatten().filter(|message| is_put(message)).map(Message::bytes).collect();
        Self { puts, last, whole: None }
    }

    fn check(&self, found: &[u8]) {
        let is_put = |at: usize, byte: u8| self.puts.iter().any(|put| put.get(at) == Some(&byte));
        let whole = |at: usize| self.whole.map(|whole| whole[at]);
        let strange = (found.iter().enumerate())
            .find(|&(at, &byte)| self.last[at] != byte && !is_put(at, byte) && whole(at) != Some(byte));
        assert!(strange.is_none(), "a byte that nobody has put: {strange:?}");
    }
}
