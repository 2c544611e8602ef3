//! Requests, answers and nonsense in any order.

use proptest::prelude::*;

use super::*;

#[derive(Clone, Debug)]
enum Step {
    Put(u64, usize),
    Get(u64, usize),
    Cancel(usize),
    Carry(usize),
    Frame(RemoteFrame, usize),
    Change(usize, u8),
    Conceal,
}

fn step() -> impl Strategy<Value = Step> {
    let number = 0u32..20;
    let frame = (0u8..4, number, 0u64..400, 0usize..400, 0u8..3, any::<bool>()).prop_map(
        |(kind, number, offset, length, outcome, is_right)| {
            let place = Place { region: 0, nonce: [u8::from(is_right); 16], offset };
            let frame = match kind {
                0 => RemoteFrame::Put(number, place, length),
                1 => RemoteFrame::Get(number, place, length as u64),
                2 => RemoteFrame::Bytes(number, length),
                _ => RemoteFrame::Ended(
                    number,
                    [Outcome::Done, Outcome::NoSuchRegion, Outcome::OutOfRegion][usize::from(outcome)],
                ),
            };
            Step::Frame(frame, if kind % 2 == 0 { length } else { 0 })
        },
    );
    prop_oneof![
        (0u64..300, 0usize..200).prop_map(|(offset, length)| Step::Put(offset, length)),
        (0u64..300, 0usize..200).prop_map(|(offset, length)| Step::Get(offset, length)),
        (0usize..20).prop_map(Step::Cancel),
        (0usize..2).prop_map(Step::Carry),
        frame,
        (0usize..FRAME_BYTES, 1u8..).prop_map(|(at, change)| Step::Change(at, change)),
        Just(Step::Conceal),
    ]
}

proptest! {
    /// Whatever the peer says, in whatever order: nothing but the region is written, and everything ends.
    #[test]
    fn whatever_a_peer_says_does_no_harm(steps in proptest::collection::vec(step(), 0..60)) {
        let mut pair = Pair::new();
        let (_, mut key) = pair.expose(REGION_BYTES);
        let (memory, other) = pair.expose(REGION_BYTES);
        let buffers: Vec<Vec<u8>> = (0..200).map(|length| vec![1; length]).collect();
        let mut places = Vec::new();
        let mut operations = Vec::new();
        for step in steps {
            match step {
                Step::Put(offset, length) => {
                    key.nonce[0] ^= u8::from(length % 7 == 0);
                    operations.push(pair.put(&key, offset, &buffers[length..=length]));
                }
                Step::Get(offset, length) => {
                    let mut place = vec![0; length];
                    operations.push(pair.get(&key, offset, &mut place));
                    places.push(place);
                }
                Step::Cancel(index) => {
                    operations.get(index).into_iter().for_each(|number| pair.cancel(*number));
                }
                Step::Carry(rank) => drop(pair.carry(rank)),
                Step::Frame(frame, bytes) => {
                    pair.bring(VISITOR, &frame.encode(OWNER), &vec![2; bytes]);
                    let right = match frame {
                        RemoteFrame::Put(number, place, length) => {
                            RemoteFrame::Put(number, Place { nonce: key.nonce, ..place }, length)
                        }
                        frame => frame,
                    };
                    pair.bring(OWNER, &right.encode(VISITOR), &vec![2; bytes]);
                }
                Step::Change(at, change) => {
                    let mut header = RemoteFrame::Put(1, Place::of(&key, 5), 8).encode(VISITOR);
                    header[at] ^= change;
                    pair.bring(OWNER, &header, &[3; 8]);
                }
                Step::Conceal => drop(pair.ranks[1].conceal(&key)),
            }
        }
        pair.settle();
        prop_assert_eq!(read(&memory), [0; REGION_BYTES]);
        prop_assert!(pair.ranks[1].conceal(&other));
        pair.ranks[0].close(&Error::Closed, true);
        for operation in operations {
            prop_assert!(pair.end(operation).is_some());
        }
    }
}
