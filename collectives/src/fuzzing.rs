//! Fuzz targets: rank 1 answers sparse collectives with arbitrary bytes, and rank 0 must get a valid result
//! or an error that names rank 1; and a rank of several lies. Built for tests and with the feature `fuzzing`.

mod lies;
mod sums;

use brevity_compress::quantise::Values;
use brevity_compress::{SparseVec, SparseView};
use ucx_sys_wrap::buffer::{Port, scope};
use ucx_sys_wrap::{Envelope, Mark, Rank, Tag, Transport, local};

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
/// by the third, whose format the five highest bits give; the second bit is the mark. Then follow up to three
/// parts, each behind a byte with its length.
pub fn sparse_messages(data: &[u8]) {
    let Some((&which, rest)) = data.split_first() else { return };
    let parts = taken(rest);
    let mut world = local::world(2).into_iter();
    let (Some(own), Some(stranger)) = (world.next(), world.next()) else { return };
    let group = Group::new(Box::new(own), Settings::default());
    let own = SparseVec::from_parts(DIM, vec![1, 5], vec![1.0, -2.0]);
    let Ok(own) = own else { return };
    answer(Box::new(stranger), which, parts);
    check(&group, which, own.view());
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

/// Sends the messages of rank 1 in its first round.
fn answer(stranger: Box<dyn Transport>, which: u8, [counts, indices, values]: [Vec<u8>; 3]) {
    let port = Port::new(stranger);
    let description = if which.is_multiple_of(2) {
        describe_all_gather(DIM, LIMIT, wire(which))
    } else {
        describe_gtopk(DIM, LIMIT, PutBack::Conserving, wire(which))
    };
    let plan = Plan::new(&[0, 0], false, &Terms::of(&Settings::default()));
    let envelope = Envelope {
        tag: Tag::new(Rank(1), 0, 0, 0),
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
            let (is_gather, is_coded) = (which.is_multiple_of(2), which & 4 != 0);
            let sent = match (is_gather, is_coded) {
                (true, true) => comm.send(Rank(0), envelope, (counts, indices)).await.map(drop),
                (true, false) => comm.send(Rank(0), envelope, (counts, (indices, values))).await.map(drop),
                (false, true) => comm.send(Rank(0), envelope, indices).await.map(drop),
                (false, false) => comm.send(Rank(0), envelope, (indices, values)).await.map(drop),
            };
            assert!(sent.is_ok(), "{sent:?}");
        },
    );
}

fn check(group: &Group, which: u8, own: SparseView<'_>) {
    let (error, vectors) = if which.is_multiple_of(2) {
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
    }
    assert!(error.iter().all(is_told), "{error:?}");
}

/// Whether an error is the other rank's fault. An overflowing sum is attributed to no rank.
fn is_told(error: &Error) -> bool {
    match error {
        Error::Payload { rank, .. } => rank.0 == 1,
        Error::NonFinite { .. } | Error::Overflow { .. } => true,
        other => other.to_string().contains("rank 1"),
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
