//! Fuzz targets: a rank answers sparse collectives with arbitrary bytes, and the other one must get a valid
//! result or an error that names it; and a rank of several lies. Built for tests and with the feature
//! `fuzzing`.

mod lies;
mod sums;

use std::sync::Arc;

use brevity_compress::quantise::Values;
use brevity_compress::{SparseVec, SparseView};
use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::{Envelope, Mark, Rank, Tag, Transport, local};

use crate::call::LANES;
use crate::calls::seed;
use crate::description::digest;
use crate::error::Error;
use crate::group::{Group, Settings};
use crate::plan::{Plan, Terms};
use crate::sparse::{Coder, PutBack, Wire, describe_all_gather, describe_gtopk};

pub use lies::ok_topk_lies;
pub use sums::sparse_sums;

const DIM: usize = 40;
const LIMIT: usize = 8;

/// The first byte selects the collective: gTop-k by the first bit, else the all-gather, with coded messages
/// by the third, whose format the five highest bits give; the second bit is the mark. If they give one of the
/// second round of formats, it is rank 0 that answers rank 1 of gTop-k, with the result. Then follow up to
/// three parts, each behind a byte with its length.
pub fn sparse_messages(data: &[u8]) {
    let Some((&which, rest)) = data.split_first() else { return };
    outcome(which, taken(rest));
}

/// Whether there was a result.
fn outcome(which: u8, parts: [Vec<u8>; 3]) -> bool {
    let mut world = local::world(2).into_iter();
    let (Some(first), Some(second)) = (world.next(), world.next()) else { return false };
    let (own, stranger) = if stranger(which) == 1 { (first, second) } else { (second, first) };
    let group = Group::new(Box::new(own), Settings::default());
    let own = SparseVec::from_parts(DIM, vec![1, 5], vec![1.0, -2.0]);
    let Ok(own) = own else { return false };
    // It stays until the call has ended: messages to a rank that has left fail.
    let _stranger = answer(Box::new(stranger), which, parts);
    check(&group, which, own.view())
}

/// The rank that answers.
fn stranger(which: u8) -> u32 {
    let goes_down = usize::from(which >> 3) / Values::ALL.len() == 1 && !which.is_multiple_of(2);
    u32::from(!goes_down)
}

/// Parts, each behind a byte with its length.
fn taken<const N: usize>(mut rest: &[u8]) -> [Vec<u8>; N] {
    std::array::from_fn(|_| {
        let Some((&length, bytes)) = rest.split_first() else { return Vec::new() };
        let (taken, left) = bytes.split_at(usize::from(length).min(bytes.len()));
        rest = left;
        taken.to_vec()
    })
}

/// How entries are written.
fn wire(which: u8) -> Wire {
    let values = Values::ALL[usize::from(which >> 3) % Values::ALL.len()];
    if which & 4 == 0 { Wire::Pairs } else { Wire::Coded(values) }
}

/// Sends the message of the stranger, and returns its port.
fn answer(transport: Box<dyn Transport>, which: u8, [counts, indices, values]: [Vec<u8>; 3]) -> Arc<Port> {
    let (port, from) = (Port::new(transport), stranger(which));
    let description = if which.is_multiple_of(2) {
        describe_all_gather(DIM, LIMIT, wire(which))
    } else {
        describe_gtopk(DIM, LIMIT, PutBack::Conserving, wire(which))
    };
    let plan = Plan::new(&[0, 0], false, &Terms::of(&Settings::default()));
    // The result comes down after the round in which entries go up.
    let round = 1 - from;
    let envelope = Envelope {
        tag: Tag::new(Rank(from), 0, 0, round * LANES),
        // As the first call of a rank that calls the same.
        signature: description.sign(0, digest(seed(0, 0, plan.digest()), description.hash())),
        mark: Mark(u64::from(which & 2)),
    };
    scope(
        &port,
        |comm| {
            comm.port().progress();
        },
        async |comm| {
            // Small messages end when they are posted, so nothing is left when the scope ends.
            let to = Rank(1 - from);
            let (is_gather, is_coded) = (which.is_multiple_of(2), which & 4 != 0);
            let sent = match (is_gather, is_coded) {
                (true, true) => comm.send(to, envelope, (counts, indices)).await.map(drop),
                (true, false) => comm.send(to, envelope, (counts, (indices, values))).await.map(drop),
                (false, true) => comm.send(to, envelope, indices).await.map(drop),
                (false, false) => comm.send(to, envelope, (indices, values)).await.map(drop),
            };
            assert!(sent.is_ok(), "{sent:?}");
        },
    );
    port
}

fn check(group: &Group, which: u8, own: SparseView<'_>) -> bool {
    let is_gather = which.is_multiple_of(2);
    let (error, vectors) = if is_gather {
        match group.sparse_all_gather_by(own, LIMIT, &mut Coder::new(wire(which))) {
            Ok(vectors) => (None, vectors),
            Err(error) => (Some(error), Vec::new()),
        }
    } else {
        match group.gtopk_all_reduce_by(own, LIMIT, PutBack::Conserving, &mut Coder::new(wire(which))) {
            Ok(outcome) => (None, vec![outcome.result, outcome.put_back]),
            Err(error) => (Some(error), Vec::new()),
        }
    };
    for vector in vectors {
        let (indices, values) = (vector.indices(), vector.values());
        assert!(indices.len() == values.len() && indices.is_sorted_by(|a, b| a < b), "{vector:?}");
        assert!(indices.iter().all(|index| (*index as usize) < DIM), "{vector:?}");
        // Pairs are gathered whatever their values are.
        assert!(is_gather || values.iter().all(|value| value.is_finite()), "{vector:?}");
    }
    assert!(error.iter().all(|error| is_told(error, stranger(which))), "{error:?}");
    error.is_none()
}

/// Whether an error is that rank's fault. An overflowing sum is attributed to no rank.
fn is_told(error: &Error, stranger: u32) -> bool {
    match error {
        Error::Payload { rank, .. } => rank.0 == stranger,
        Error::NonFinite { .. } | Error::Overflow { .. } => true,
        other => other.to_string().contains(&format!("rank {stranger}")),
    }
}

#[cfg(test)]
mod tests {
    use brevity_compress::codec::{Choice, Encoder};
    use brevity_compress::quantise::Magnitude;

    use super::*;

    #[test]
    fn the_corpus_of_sparse_messages_does_no_harm() {
        let folder = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../fuzz/corpus/sparse_messages");
        let mut count = 0;
        for entry in std::fs::read_dir(&folder).unwrap() {
            let path = entry.unwrap().path();
            println!("{}", path.display());
            sparse_messages(&std::fs::read(path).unwrap());
            count += 1;
        }
        assert!(count > 0, "{} is empty", folder.display());
    }

    /// The root of a gTop-k all-reduce answers: what comes down to the other rank is checked.
    #[test]
    fn a_result_from_the_root_is_finite() {
        let which = (Values::ALL.len() as u8) << 3 | 1;
        let result =
            |index: u32, value: f32| [Vec::new(), index.to_le_bytes().to_vec(), value.to_le_bytes().to_vec()];
        assert!(stranger(which) == 0 && outcome(which, result(5, -1.0)));
        for (index, value) in [(5, f32::NAN), (5, f32::INFINITY), (5, f32::NEG_INFINITY), (40, 1.0)] {
            assert!(!outcome(which, result(index, value)), "{index}: {value}");
        }
    }

    /// So a fuzzer that changes them gets past the first checks.
    #[test]
    fn coded_files_of_the_corpus_are_real_messages() {
        let entries = SparseVec::from_parts(DIM, vec![2, 9, 33], vec![1.5, -2.0, 0.25]).unwrap();
        let files: [(&[u8], Values); 3] = [
            (include_bytes!("../../fuzz/corpus/sparse_messages/gather_coded_f32"), Values::F32),
            (include_bytes!("../../fuzz/corpus/sparse_messages/gather_coded_bf16"), Values::Bf16),
            (
                include_bytes!("../../fuzz/corpus/sparse_messages/gather_coded_one_bit"),
                Values::OneBit(Magnitude::Mean),
            ),
        ];
        for (file, values) in files {
            assert_eq!(wire(file[0]), Wire::Coded(values));
            let mut message = Vec::new();
            let mut quantiser = values.quantiser();
            Encoder::new().encode(entries.view(), Choice::Fast, &mut *quantiser, &mut message).unwrap();
            let length = message.len();
            assert_eq!(file[1..], [&[8], &length.to_le_bytes()[..], &[length as u8], &message].concat());
        }
        let gtopk = include_bytes!("../../fuzz/corpus/sparse_messages/gtopk_coded_f16");
        assert_eq!((gtopk[0] & 1, wire(gtopk[0])), (1, Wire::Coded(Values::F16)));
        let mut message = Vec::new();
        let mut quantiser = Values::F16.quantiser();
        Encoder::new().encode(entries.view(), Choice::Fast, &mut *quantiser, &mut message).unwrap();
        assert_eq!(gtopk[1..], [&[0, message.len() as u8], &message[..]].concat());
    }
}
