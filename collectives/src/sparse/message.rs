//! Sparse vectors as messages from one rank to another: two parts, indices and values, or one that is coded.

use brevity_compress::{SparseVec, codec};
use ucx_sys_wrap::Lengths;

use super::wire::Wire;
use crate::call::Call;
use crate::data::Element;
use crate::error::{Error, Result};

/// A sparse vector as it travels.
pub(super) enum Message {
    Pairs(SparseVec),
    Coded(Vec<u8>),
}

/// What a message may hold.
#[derive(Clone, Copy)]
pub(super) struct Room {
    pub(super) dim: usize,
    /// The largest number of entries.
    pub(super) limit: usize,
    pub(super) wire: Wire,
}

impl Message {
    /// Sends it, and returns it.
    pub(super) async fn send(self, call: &Call<'_, '_>, to: u32, round: u32) -> Result<Self> {
        Ok(match self {
            Self::Pairs(entries) => {
                let dim = entries.dim();
                let (indices, values) = call.send(to, round, entries.into_parts()).await?;
                Self::Pairs(SparseVec::from_parts(dim, indices, values)?)
            }
            Self::Coded(bytes) => Self::Coded(call.send(to, round, bytes).await?),
        })
    }

    /// Receives one into the memory of another. Entries of pairs are checked here, coded ones when they are
    /// [read](super::reader::Reader).
    pub(super) async fn receive(
        self,
        call: &Call<'_, '_>,
        from: u32,
        round: u32,
        room: Room,
    ) -> Result<Self> {
        Ok(match (self, room.wire) {
            (memory, Wire::Pairs) => {
                Self::Pairs(receive(call, from, round, room.dim, room.limit, memory.into_parts()).await?)
            }
            (memory, Wire::Coded(values)) => {
                let mut bytes = memory.into_bytes();
                call.resize(&mut bytes, codec::most_bytes(room.dim, room.limit, values))?;
                let (mut bytes, lengths) = call.recv_up_to(from, round, bytes).await?;
                bytes.truncate(lengths.iter().sum());
                Self::Coded(bytes)
            }
        })
    }

    fn into_parts(self) -> EntryBuffers {
        match self {
            Self::Pairs(entries) => entries.into_parts(),
            Self::Coded(_) => EntryBuffers::default(),
        }
    }

    fn into_bytes(self) -> Vec<u8> {
        match self {
            Self::Pairs(_) => Vec::new(),
            Self::Coded(bytes) => bytes,
        }
    }
}

/// The error of a rank that has sent a sparse vector with this error.
pub(super) fn invalid(call: &Call<'_, '_>, from: u32, error: brevity_compress::Error) -> Error {
    call.refuse(from, format!("a sparse vector with {error}"))
}

/// Buffers to receive the indices and values of a sparse vector into.
pub(super) type EntryBuffers = (Vec<u32>, Vec<f32>);

/// Resizes `parts` to `entries` entries.
fn resized(call: &Call<'_, '_>, parts: EntryBuffers, entries: usize) -> Result<EntryBuffers> {
    let (mut indices, mut values) = parts;
    call.resize(&mut indices, entries)?;
    call.resize(&mut values, entries)?;
    Ok((indices, values))
}

/// Receives a sparse vector of at most `limit` entries below `dim` into `parts`, and checks it.
async fn receive(
    call: &Call<'_, '_>,
    from: u32,
    round: u32,
    dim: usize,
    limit: usize,
    parts: EntryBuffers,
) -> Result<SparseVec> {
    let (arrived, lengths) = call.recv_up_to(from, round, resized(call, parts, limit)?).await?;
    let (mut indices, mut values) = arrived;
    indices.truncate(entries(call, &lengths, from)?);
    values.truncate(indices.len());
    finite_entries(dim, indices, values).map_err(|error| invalid(call, from, error))
}

/// Entries of another rank. Their values are finite: a rank poisons the call rather than send another value.
pub(super) fn finite_entries(
    dim: usize,
    indices: Vec<u32>,
    values: Vec<f32>,
) -> std::result::Result<SparseVec, brevity_compress::Error> {
    let entries = SparseVec::from_parts(dim, indices, values)?;
    entries.view().check_finite()?;
    Ok(entries)
}

/// Receives two parts of at most so many elements.
pub(super) async fn receive_parts<A: Element, B: Element>(
    call: &Call<'_, '_>,
    from: u32,
    round: u32,
    (most_first, most_second): (usize, usize),
) -> Result<(Vec<A>, Vec<B>)> {
    let room = (call.zeros::<A>(most_first)?, call.zeros::<B>(most_second)?);
    let ((mut first, mut second), lengths) = call.recv_up_to(from, round, room).await?;
    match lengths[..] {
        [of_first, of_second]
            if of_first.is_multiple_of(size_of::<A>()) && of_second.is_multiple_of(size_of::<B>()) =>
        {
            first.truncate(of_first / size_of::<A>());
            second.truncate(of_second / size_of::<B>());
            Ok((first, second))
        }
        _ => {
            let (a, b) = (size_of::<A>(), size_of::<B>());
            let what = format!("parts of {lengths:?} bytes, expected multiples of {a} and {b}");
            Err(call.refuse(from, what))
        }
    }
}

/// The number of entries of a message whose parts have these lengths.
pub(super) fn entries(call: &Call<'_, '_>, lengths: &Lengths, from: u32) -> Result<usize> {
    match lengths[..] {
        [indices, values] if indices == values && indices % size_of::<u32>() == 0 => {
            Ok(indices / size_of::<u32>())
        }
        _ => {
            let what =
                format!("a sparse vector with parts of {lengths:?} bytes, expected equal multiples of 4");
            Err(call.refuse(from, what))
        }
    }
}
