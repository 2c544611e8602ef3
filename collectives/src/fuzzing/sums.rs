//! The same for sums of sparse vectors by doubling, and of dense vectors in blocks.

use std::sync::Arc;

use brevity_compress::SparseVec;
use brevity_compress::quantise::Values;
use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::{Envelope, Mark, Rank, Tag, Transport, local};

use super::{DIM, LIMIT, is_told, taken};
use crate::call::LANES;
use crate::calls::seed;
use crate::description::{Description, digest};
use crate::error::Result;
use crate::group::{Group, Settings, wished};
use crate::plan::{Algorithm, Plan, Terms};
use crate::sparse::{Coder, Wire, describe_blocks, describe_topk};

/// Values of a block: rank 0 owns blocks 0 to 2, rank 1 blocks 3 and 4.
const BLOCK: usize = 8;

/// A collective of two ranks that rank 1 answers.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Called {
    Doubling(Wire),
    Blocks,
}

impl Called {
    const ALL: [Self; 3] =
        [Self::Doubling(Wire::Pairs), Self::Doubling(Wire::Coded(Values::F32)), Self::Blocks];

    fn description(self) -> Description {
        match self {
            Self::Doubling(wire) => wished(describe_topk(DIM, LIMIT, wire), Algorithm::Doubling),
            Self::Blocks => describe_blocks(DIM, BLOCK),
        }
    }

    /// The sum on rank 0.
    fn run(self, group: &Group) -> Result<Vec<f32>> {
        let own = SparseVec::from_parts(DIM, vec![1, 5, 30], vec![1.0, -2.0, 0.5])?;
        match self {
            Self::Doubling(wire) => {
                let group = group.with_algorithm(Some(Algorithm::Doubling));
                let outcome = group.topk_all_reduce_by(own.view(), LIMIT, &mut Coder::new(wire));
                outcome.map(|outcome| outcome.sum.to_dense())
            }
            Self::Blocks => {
                let mut vector = own.to_dense();
                group.block_all_reduce(&mut vector, BLOCK).map(|()| vector)
            }
        }
    }
}

/// The first byte selects the collective, by its remainder by three, and its highest bit is the mark. Then
/// follow up to four parts, each behind a byte with its length: two of each message of rank 1.
pub fn sparse_sums(data: &[u8]) {
    let Some((&which, rest)) = data.split_first() else { return };
    outcome(which, taken(rest));
}

/// Whether there was a sum.
fn outcome(which: u8, parts: [Vec<u8>; 4]) -> bool {
    let called = Called::ALL[usize::from(which & 0x7f) % Called::ALL.len()];
    let mut world = local::world(2).into_iter();
    let (Some(own), Some(stranger)) = (world.next(), world.next()) else { return false };
    let group = Group::new(Box::new(own), Settings::default());
    // It stays until the call has ended: messages to a rank that has left fail.
    let _stranger = answer(Box::new(stranger), called, Mark(u64::from(which >> 7)), parts);
    match called.run(&group) {
        Ok(sum) => {
            assert!(sum.len() == DIM && sum.iter().all(|value| value.is_finite()), "{called:?}: {sum:?}");
            true
        }
        Err(error) => {
            #[cfg(test)]
            println!("{called:?}: {error}");
            assert!(is_told(&error, 1), "{called:?}: {error:?}");
            false
        }
    }
}

/// Sends the messages of rank 1, and returns its port.
fn answer(stranger: Box<dyn Transport>, called: Called, mark: Mark, parts: [Vec<u8>; 4]) -> Arc<Port> {
    let port = Port::new(stranger);
    let description = called.description();
    let plan = Plan::new(&[0, 0], false, &Terms::of(&Settings::default()));
    let signature = description.sign(0, digest(seed(0, 0, plan.digest()), description.hash()));
    let envelope = |round: u32| Envelope { tag: Tag::new(Rank(1), 0, 0, round * LANES), signature, mark };
    scope(
        &port,
        |comm| {
            comm.port().progress();
        },
        async |comm| {
            let [first, second, third, fourth] = parts;
            let mut sent = comm.send(Rank(0), envelope(0), (first, second)).await.map(drop);
            if called == Called::Blocks && sent.is_ok() {
                sent = comm.send(Rank(0), envelope(1), (third, fourth)).await.map(drop);
            }
            assert!(sent.is_ok(), "{sent:?}");
        },
    );
    port
}

#[cfg(test)]
mod tests {
    use brevity_compress::generator::Generator;

    use super::*;

    fn words(words: &[u32]) -> Vec<u8> {
        words.iter().flat_map(|word| word.to_le_bytes()).collect()
    }

    fn floats(values: &[f32]) -> Vec<u8> {
        values.iter().flat_map(|value| value.to_le_bytes()).collect()
    }

    #[test]
    fn valid_messages_make_sums() {
        let none = Vec::new;
        assert!(outcome(0, [words(&[2, 5]), floats(&[1.0, 2.0]), none(), none()]));
        assert!(outcome(0, [none(), none(), none(), none()]));
        let blocks = [words(&[0, 2]), floats(&[1.0; 16]), words(&[3]), floats(&[2.0; 8])];
        assert!(outcome(2, blocks.clone()));
        // A message for the other slice, a block twice, a value too few, a sum of another rank's.
        let [first, second, third, fourth] = blocks;
        for blocks in [
            [words(&[3]), floats(&[1.0; 8]), third.clone(), fourth.clone()],
            [words(&[0, 0]), second.clone(), third.clone(), fourth.clone()],
            [first.clone(), floats(&[1.0; 15]), third.clone(), fourth.clone()],
            [first.clone(), second.clone(), words(&[0]), fourth.clone()],
            [first.clone(), second.clone(), third.clone(), floats(&[f32::NAN; 8])],
        ] {
            assert!(!outcome(2, blocks));
        }
        for (indices, values) in [
            (words(&[5, 2]), floats(&[1.0; 2])),
            (words(&[40]), floats(&[1.0])),
            (words(&[2]), floats(&[f32::INFINITY])),
            (none(), floats(&[f32::INFINITY])),
            (none(), floats(&[1.0])),
            (words(&[2]), none()),
            (none(), vec![0; 7]),
        ] {
            assert!(!outcome(0, [indices, values, none(), none()]));
        }
    }

    #[test]
    fn the_corpus_does_no_harm_and_has_real_messages() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/sparse_sums");
        let mut sums = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let data = std::fs::read(entry.unwrap().path()).unwrap();
            sums += usize::from(outcome(data[0], taken(&data[1..])));
        }
        assert!(sums >= 3, "only {sums} of {} are sums", folder.display());
    }

    #[test]
    fn arbitrary_messages_do_no_harm() {
        let mut generator = Generator::new(11);
        for _ in 0..3000 {
            let mut data: Vec<u8> = vec![generator.next_u64() as u8];
            for _ in 0..4 {
                // Often whole numbers that are small.
                let count = generator.below(12) as usize;
                let word = |generator: &mut Generator| {
                    let word = generator.next_u64();
                    if word >> 63 == 0 { (word % 48) as u32 } else { (word >> 20) as u32 }
                };
                let mut part: Vec<u32> = (0..count).map(|_| word(&mut generator)).collect();
                part.sort_unstable();
                let mut bytes = words(&part);
                bytes.truncate(bytes.len() - usize::from(generator.below(9) == 0).min(bytes.len()));
                data.push(bytes.len() as u8);
                data.extend(bytes);
            }
            sparse_sums(&data);
        }
    }
}
