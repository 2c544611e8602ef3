//! Long messages of entries in segments: while one is merged or passed on, the next one arrives.
//!
//! A message is cut by index: the entries of a segment are above those of the one before, so that each is a
//! sparse vector by itself and is coded and checked as such. Sender and receiver derive the number of
//! segments from what the call has agreed on, whatever the entries are. A short message is one segment.

use std::future::{Future, poll_fn};
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;

use brevity_compress::SparseVec;

use super::message::{Message, Room, invalid};
use super::wire::Coder;
use crate::call::{Call, Sending};
use crate::engine::join_all;
use crate::error::Result;
use crate::pattern::Binomial;
use crate::plan::{Estimate, Ground, Work};

/// How a message of at most so many entries is cut.
#[derive(Clone, Copy)]
pub(super) struct Segments {
    /// Of the message as a whole.
    whole: Room,
    count: usize,
    /// The most entries of a segment.
    most: usize,
}

impl Segments {
    /// Of messages of about `segment_bytes` at most.
    pub(super) fn new(whole: Room, segment_bytes: usize) -> Self {
        let Room { dim, limit, wire } = whole;
        let pieces = if wire.can_be_cut() { pieces(wire.most_bytes(dim, limit), segment_bytes) } else { 1 };
        let most = limit.div_ceil(pieces).max(1);
        Self { whole, count: limit.div_ceil(most).max(1), most }
    }

    /// What a segment may hold.
    pub(super) fn room(self) -> Room {
        Room { limit: self.most.min(self.whole.limit), ..self.whole }
    }

    /// The messages of these entries, and what they round away.
    pub(super) fn messages(self, coder: &mut Coder, entries: SparseVec) -> Result<(Vec<Message>, SparseVec)> {
        let wire = self.whole.wire;
        if self.count == 1 {
            let (message, rounded) = coder.message(entries, wire)?;
            return Ok((vec![message], rounded));
        }
        // Equally long: at most the most, since there are at most as many entries as there may be.
        let each = entries.len().div_ceil(self.count);
        let (mut messages, mut rounded) = (Vec::with_capacity(self.count), SparseVec::new(entries.dim()));
        for number in 0..self.count {
            let place = |number: usize| (number * each).min(entries.len());
            let segment = entries.view().slice(place(number)..place(number + 1));
            let (message, away) = coder.message(segment.to_owned(), wire)?;
            rounded.append(away.view());
            messages.push(message);
        }
        Ok((messages, rounded))
    }

    /// Receives the segments in order, into the `memory` of another message, and hands each to `take`, which
    /// gives back memory for another one. Meanwhile the next one arrives.
    pub(super) async fn receive(
        self,
        call: &Call<'_, '_>,
        (from, round): (u32, u32),
        memory: Message,
        mut take: impl FnMut(Message) -> Result<Message>,
    ) -> Result<Message> {
        let mut arrived = memory.receive(call, from, round, self.room()).await?;
        let mut memory = Message::Pairs(SparseVec::new(self.whole.dim));
        for _ in 1..self.count {
            let mut next = pin!(memory.receive(call, from, round, self.room()));
            // The first poll posts the receive.
            let come = poll_fn(|context| Poll::Ready(next.as_mut().poll(context))).await;
            memory = take(arrived)?;
            arrived = match come {
                Poll::Ready(next) => next?,
                Poll::Pending => next.await?,
            };
        }
        take(arrived)
    }

    /// Passes segments down a tree, in rounds from `first_round` on, and returns them: those of the root are
    /// `messages`; other ranks receive them from their parent, into the memory of `messages`.
    ///
    /// The first child, which has the largest subtree, gets each segment when it comes, and the others all of
    /// them afterwards. If children took turns, all would get the last segment at the end, and their subtrees
    /// would wait for it.
    pub(super) async fn hand_down(
        self,
        call: &Call<'_, '_>,
        tree: Binomial,
        first_round: u32,
        messages: Vec<Message>,
    ) -> Result<Vec<Message>> {
        let mut children = tree.children().rev().map(|(child, round)| (child, first_round + round));
        let (mut sends, mut passed) = (Sends::default(), Vec::with_capacity(self.count));
        let first = children.next();
        let mut pass = |message: Message| {
            let message = Shared::from(message);
            first.into_iter().for_each(|child| sends.post(call, child, &message));
            passed.push(message);
        };
        match tree.parent() {
            None => messages.into_iter().for_each(pass),
            Some((parent, round)) => {
                let dim = self.whole.dim;
                let memory = messages.into_iter().next();
                let memory = memory.unwrap_or_else(|| Message::Pairs(SparseVec::new(dim)));
                let receive = self.receive(call, (parent, first_round + round), memory, |message| {
                    pass(message);
                    Ok(Message::Pairs(SparseVec::new(dim)))
                });
                receive.await?;
            }
        }
        for child in children {
            passed.iter().for_each(|message| sends.post(call, child, message));
        }
        sends.ended().await?;
        passed.into_iter().map(Shared::into_message).collect()
    }

    /// The entries of segments that rank `from` has sent, as a whole.
    pub(super) fn read(
        self,
        call: &Call<'_, '_>,
        from: u32,
        messages: Vec<Message>,
        coder: &mut Coder,
    ) -> Result<SparseVec> {
        let mut whole = SparseVec::new(self.whole.dim);
        for message in messages {
            let entries = coder.read(message, self.room()).map_err(|error| invalid(call, from, error))?;
            if self.count == 1 {
                return Ok(entries);
            }
            if entries.indices().first().is_some_and(|first| whole.indices().last() >= Some(first)) {
                return Err(call.refuse(from, "a segment that does not follow the one before".into()));
            }
            whole.append(entries.view());
            self.check(call, from, whole.len())?;
        }
        Ok(whole)
    }

    /// Fails if the segments of rank `from` have more entries than there may be.
    pub(super) fn check(self, call: &Call<'_, '_>, from: u32, entries: usize) -> Result<()> {
        let most = self.whole.limit;
        if entries <= most {
            return Ok(());
        }
        Err(call.refuse(from, format!("{entries} entries in segments, expected at most {most}")))
    }
}

/// Sends all segments to a rank at once, and returns them.
pub(super) async fn send(
    call: &Call<'_, '_>,
    to: u32,
    round: u32,
    messages: Vec<Message>,
) -> Result<Vec<Message>> {
    // Posted in order: that is the order in which they are first polled.
    let sent = join_all(messages.into_iter().map(|message| message.send(call, to, round))).await;
    sent.into_iter().collect()
}

/// How many segments a message of so many bytes has.
fn pieces(bytes: usize, segment_bytes: usize) -> usize {
    bytes.div_ceil(segment_bytes.max(1)).max(1)
}

/// Segments of a message, as an algorithm is estimated by them.
#[derive(Clone, Copy)]
pub(super) struct Pieces<'a> {
    ground: &'a Ground,
    bytes: f64,
    count: f64,
}

impl<'a> Pieces<'a> {
    /// Of a message of so many bytes.
    pub(super) fn new(bytes: usize, work: &Work, ground: &'a Ground) -> Self {
        let count = if work.in_segments { pieces(bytes, ground.slice_bytes) } else { 1 };
        Self { ground, bytes: bytes as f64, count: count as f64 }
    }

    fn whole(self) -> Estimate {
        self.ground.messages(self.count, self.bytes)
    }

    /// A message that takes `adding` seconds to add to what a rank has, and `after` seconds when all of it is
    /// added: all segments but the last are added while others arrive.
    pub(super) fn merged(self, adding: f64, after: f64) -> Estimate {
        let (whole, last) = (self.whole(), 1.0 / self.count);
        let late = ((adding - whole.port) * (1.0 - last)).max(0.0);
        let seconds = whole.seconds + late + adding * last + after;
        Estimate { seconds, processor: whole.processor + adding + after, ..whole }
    }

    /// A binomial tree of so many rounds down which they are [passed](Segments::hand_down). The last child of
    /// the root waits for all others, and the last rank of the longest path for each rank before it: one of
    /// them is the last.
    pub(super) fn passed_down(self, rounds: u32) -> Estimate {
        if rounds == 0 {
            return Estimate::default();
        }
        let (whole, all) = (self.whole(), self.whole().times(rounds));
        let piece = self.ground.message(self.bytes / self.count);
        let alpha = self.ground.link().alpha;
        let last_child = all.seconds - f64::from(rounds - 1) * alpha;
        let longest_path = f64::from(rounds - 1) * piece.seconds + whole.seconds;
        Estimate { seconds: last_child.max(longest_path), ..all }
    }
}

/// A message that several sends share.
enum Shared {
    Pairs(usize, SharedPairs),
    Coded(Arc<Vec<u8>>),
}

type SharedPairs = (Arc<Vec<u32>>, Arc<Vec<f32>>);

impl From<Message> for Shared {
    fn from(message: Message) -> Self {
        match message {
            Message::Pairs(entries) => {
                let dim = entries.dim();
                let (indices, values) = entries.into_parts();
                Self::Pairs(dim, (Arc::new(indices), Arc::new(values)))
            }
            Message::Coded(bytes) => Self::Coded(Arc::new(bytes)),
        }
    }
}

impl Shared {
    /// The message, when all sends have ended.
    fn into_message(self) -> Result<Message> {
        Ok(match self {
            Self::Pairs(dim, (indices, values)) => {
                let (indices, values) = (Arc::unwrap_or_clone(indices), Arc::unwrap_or_clone(values));
                Message::Pairs(SparseVec::from_parts(dim, indices, values)?)
            }
            Self::Coded(bytes) => Message::Coded(Arc::unwrap_or_clone(bytes)),
        })
    }
}

/// Sends on their way.
#[derive(Default)]
struct Sends<'a, 'env> {
    pairs: Vec<Sending<'a, 'env, SharedPairs>>,
    coded: Vec<Sending<'a, 'env, Arc<Vec<u8>>>>,
}

impl<'a, 'env> Sends<'a, 'env> {
    fn post(&mut self, call: &'a Call<'_, 'env>, (to, round): (u32, u32), message: &Shared) {
        match message {
            Shared::Pairs(_, (indices, values)) => {
                self.pairs.push(call.send(to, round, (Arc::clone(indices), Arc::clone(values))));
            }
            Shared::Coded(bytes) => self.coded.push(call.send(to, round, Arc::clone(bytes))),
        }
    }

    async fn ended(self) -> Result<()> {
        for send in self.pairs {
            drop(send.await?);
        }
        for send in self.coded {
            drop(send.await?);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use brevity_compress::quantise::Values;
    use ucx_sys_wrap::Rank;
    use ucx_sys_wrap::sim::{Cluster, Links, run};

    use super::*;
    use crate::error::Error;
    use crate::group::{Group, Settings};
    use crate::sparse::{Gtopk, PutBack, Wire, describe_gtopk};

    const DIM: usize = 100;
    const K: usize = 20;

    fn entries(count: usize) -> SparseVec {
        let indices = (0..count as u32).map(|place| 4 * place).collect();
        SparseVec::from_parts(DIM, indices, vec![1.5; count]).unwrap()
    }

    #[test]
    fn segments_hold_all_entries_in_order() {
        for wire in [Wire::Pairs, Wire::Coded(Values::F32), Wire::Coded(Values::Bf16)] {
            let sizes = (0..25).flat_map(|limit| [1, 8, 64, 100, 1000].map(|bytes| (limit, bytes)));
            for (limit, bytes) in sizes {
                let whole = Room { dim: DIM, limit, wire };
                let segments = Segments::new(whole, bytes);
                assert!(segments.count >= 1 && segments.count * segments.most >= limit);
                assert!(segments.count <= limit.max(1) && (segments.count == 1 || segments.most < limit));
                for count in 0..=limit {
                    let (mut coder, given) = (Coder::new(wire), entries(count));
                    let (messages, rounded) = segments.messages(&mut coder, given.clone()).unwrap();
                    assert_eq!((messages.len(), rounded.len()), (segments.count, 0));
                    let mut found = SparseVec::new(DIM);
                    for message in messages {
                        // No more than there is room for.
                        let segment = coder.read(message, segments.room()).unwrap();
                        assert!(segment.len() <= segments.most);
                        found.append(segment.view());
                    }
                    assert_eq!(found, given, "{count} of {limit} entries, {bytes} bytes");
                }
            }
        }
        // A scale is of all values of a message.
        let whole = Room { dim: DIM, limit: K, wire: Wire::Coded(Values::EightBit) };
        assert_eq!(Segments::new(whole, 1).count, 1);
    }

    /// What rank `honest` gets of a gTop-k all-reduce where the other one sends these segments.
    fn outcome(honest: u32, sent: &[(Vec<u32>, Vec<f32>)]) -> Result<Gtopk> {
        let ranks = run(Cluster::new(2, Links::new(1e-6, 1e-9)), |transport| {
            // Three segments of at most seven pairs.
            let group = Group::new(transport, Settings { segment_bytes: 64, ..Settings::default() });
            let (rule, sent) = (PutBack::Conserving, sent.to_vec());
            async move {
                if group.rank() == honest {
                    return Some(group.start_gtopk_all_reduce(entries(K), K, rule, Coder::pairs()).await.1);
                }
                let description = describe_gtopk(DIM, K, rule, Wire::Pairs);
                let lying = group.start_in_order(description, sent, move |call, sent| {
                    let count = sent.len();
                    Box::pin(async move {
                        let is_child = honest == 0;
                        let results = if is_child && count == 3 { 3 } else { 0 };
                        for segment in std::mem::take(sent) {
                            drop(call.send(honest, u32::from(!is_child), segment).await?);
                        }
                        // A child that leaves before it has the result is lost.
                        for _ in 0..results {
                            drop(call.recv_up_to(honest, 1, (vec![0_u32; 7], vec![0.0_f32; 7])).await?);
                        }
                        Ok::<_, Error>(())
                    })
                });
                drop(lying.await);
                None
            }
        });
        ranks.unwrap().into_iter().flatten().next().unwrap()
    }

    fn segment(indices: impl IntoIterator<Item = u32>) -> (Vec<u32>, Vec<f32>) {
        let indices: Vec<u32> = indices.into_iter().collect();
        let values = vec![2.0; indices.len()];
        (indices, values)
    }

    #[test]
    fn segments_of_a_peer_are_checked() {
        let valid = [segment(0..7), segment(20..20), segment(50..57)];
        let result = outcome(1, &valid).unwrap().result;
        assert_eq!(result.indices(), [0, 1, 2, 3, 4, 5, 6, 50, 51, 52, 53, 54, 55, 56]);
        // Where both have entries, at multiples of four, their sums are the largest; all of the others are 2.
        let result = outcome(0, &valid).unwrap().result;
        assert_eq!(result.iter().filter(|(_, value)| *value == 3.5).count(), 4);
        for (what, lies) in [
            ("an index again", [segment(0..7), segment(6..12), segment(50..57)]),
            ("an earlier index", [segment(20..27), segment(40..47), segment(0..1)]),
            ("not rising", [segment(0..7), segment([9, 8]), segment(50..57)]),
            ("out of range", [segment(0..7), segment(10..17), segment([100])]),
            ("too many in all", [segment(0..7), segment(10..17), segment(50..57)]),
            ("a value too few", [segment(0..7), (vec![9], Vec::new()), segment(50..57)]),
            ("not a number", [segment(0..7), (vec![9], vec![f32::NAN]), segment(50..57)]),
            ("infinite", [segment(0..7), segment(20..20), (vec![52], vec![f32::NEG_INFINITY])]),
        ] {
            for honest in [0, 1] {
                let error = outcome(honest, &lies).unwrap_err();
                let of_liar = matches!(error, Error::Payload { rank: Rank(rank), .. } if rank != honest);
                assert!(of_liar, "{what}, to rank {honest}: {error:?}");
            }
        }
        for honest in [0, 1] {
            // Eight in a segment, and a segment too few.
            assert!(outcome(honest, &[segment(0..8), segment(20..20), segment(50..57)]).is_err());
            assert!(outcome(honest, &[segment(0..7), segment(20..27)]).is_err());
        }
    }
}
