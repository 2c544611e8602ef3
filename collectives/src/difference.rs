//! What differs between the calls of ranks.
//!
//! A rank that finds that calls differ closes the context. The members then tell the first of them their last
//! calls, by messages in a context that a difference does not close; it compares them with its own, and tells
//! all what it found. So every rank reports the same difference. Nobody waits longer than a second, for
//! instance if the first member makes no call.

use std::collections::VecDeque;
use std::fmt;
use std::future::poll_fn;
use std::pin::Pin;
use std::sync::{Arc, OnceLock};
use std::task::Poll;
use std::time::Duration;

use parking_lot::Mutex;
use ucx_sys_wrap::buffer::{Comm, next_turn};
use ucx_sys_wrap::{Envelope, Failure, Mark, Rank, Signature, Tag};

use crate::calls::PastCall;
use crate::context::Ranks;
use crate::engine::Status;

/// The number of the context of messages about other contexts. The loss of a rank does not close it.
pub(crate) const CONTROL: u16 = ucx_sys_wrap::buffer::MAX_CONTEXTS as u16 - 1;

/// How long the first member waits for the calls of others, and others for its answer.
const CALLS_WITHIN: Duration = Duration::from_millis(500);
const ANSWER_WITHIN: Duration = Duration::from_secs(1);

/// The longest answer in bytes, and the longest list of plans that a rank tells.
const MAX_ANSWER: usize = 4 << 10;
const MAX_PLANS: usize = 32 << 10;

/// How many members tell their calls at a time.
const AT_ONCE: usize = 32;

/// The rounds of these messages.
const CALLS: u32 = 0;
const ANSWER: u32 = 1;

/// The text that tells how the calls of ranks differ, once it is known.
#[derive(Clone, Default)]
pub struct Difference(Arc<OnceLock<String>>);

impl Difference {
    /// The text, if it is known.
    #[must_use]
    pub fn text(&self) -> Option<&str> {
        self.0.get().map(String::as_str)
    }
}

impl fmt::Debug for Difference {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Debug::fmt(&self.text(), f)
    }
}

/// Finds out how the calls of ranks differ, if that is why the context is closed and it is not known yet.
pub(crate) async fn explain(comm: &Comm<'_>, ranks: &Ranks, status: &Status) {
    let own = comm.port().rank();
    let (Some(Failure::Differs(_)), Some(first)) = (comm.port().failure(ranks.number), ranks.members.first())
    else {
        return;
    };
    if ranks.difference.text().is_some() {
        return;
    }
    let Some(explains) = status.begins_to_explain() else { return };
    let text =
        if *first == own { find(comm, ranks, status).await } else { ask(comm, ranks, status, *first).await };
    if let Some(text) = text {
        ranks.difference.0.get_or_init(|| text);
    }
    explains.ends();
}

/// Compares the calls of the others with this rank's until one differs, and tells all.
///
/// Members that are silent take only their share of the time from the others.
async fn find(comm: &Comm<'_>, ranks: &Ranks, status: &Status) -> Option<String> {
    let own = comm.port().rank();
    let ours = Told { calls: status.calls.last_calls(), plans: status.plans.clone_all() };
    let others: Vec<Rank> = ranks.members.iter().copied().filter(|member| *member != own).collect();
    let (mut found, end) = (None, comm.now() + CALLS_WITHIN);
    let all = others.chunks(AT_ONCE);
    for (some, left) in all.clone().zip((1..=all.len() as u32).rev()) {
        let share = end.saturating_sub(comm.now()) / left;
        keep_surer(&mut found, find_among(comm, ranks, &ours, some, comm.now() + share).await);
        if matches!(found, Some(Finding::Sure(_))) {
            break;
        }
    }
    let found = found.map(|(Finding::Sure(text) | Finding::Behind(text))| text);
    let found = found.map(|mut text| {
        let end = (0..=MAX_ANSWER).rev().find(|end| text.is_char_boundary(*end));
        text.truncate(end.unwrap_or(0));
        text
    });
    let text = found.clone().unwrap_or_default().into_bytes();
    let mut sends: Vec<_> =
        others.iter().map(|member| comm.send(*member, envelope(own, ranks, ANSWER), text.clone())).collect();
    let end = comm.now() + CALLS_WITHIN;
    poll_fn(|context| {
        sends.retain_mut(|send| Pin::new(send).poll(context).is_pending());
        if sends.is_empty() || comm.now() >= end { Poll::Ready(()) } else { next_turn(context) }
    })
    .await;
    found
}

/// Compares the calls of `some` others until one differs.
async fn find_among(
    comm: &Comm<'_>,
    ranks: &Ranks,
    ours: &Told,
    some: &[Rank],
    end: Duration,
) -> Option<Finding> {
    let room = || (vec![0; PastCall::BYTES * PastCall::KEPT], vec![0; MAX_PLANS]);
    let receive = |member: &Rank| comm.recv(*member, envelope(*member, ranks, CALLS), room());
    let mut receives: Vec<_> = some.iter().map(|member| Some(receive(member))).collect();
    let mut found = None;
    poll_fn(|context| {
        for (receive, rank) in receives.iter_mut().zip(some) {
            let Some(pending) = receive else { continue };
            let Poll::Ready(outcome) = Pin::new(pending).poll(context) else { continue };
            *receive = None;
            if let Ok(((mut calls, mut plans), arrival)) = outcome {
                calls.truncate(arrival.lengths.first().copied().unwrap_or(0));
                plans.truncate(arrival.lengths.get(1).copied().unwrap_or(0));
                let theirs = Told { calls: PastCall::decode_all(&calls), plans: Plans::decode(&plans) };
                keep_surer(&mut found, compare((comm.port().rank(), ours), (*rank, &theirs)));
            }
        }
        let is_over = matches!(found, Some(Finding::Sure(_)))
            || receives.iter().all(Option::is_none)
            || comm.now() >= end;
        if is_over { Poll::Ready(()) } else { next_turn(context) }
    })
    .await;
    found
}

/// Tells this rank's calls, and waits for the answer.
async fn ask(comm: &Comm<'_>, ranks: &Ranks, status: &Status, first: Rank) -> Option<String> {
    let calls: Vec<u8> = status.calls.last_calls().iter().flat_map(PastCall::encode).collect();
    let plans = Plans::encode(&status.plans.clone_all());
    let mut send = Some(comm.send(first, envelope(comm.port().rank(), ranks, CALLS), (calls, plans)));
    let mut receive = comm.recv(first, envelope(first, ranks, ANSWER), vec![0; MAX_ANSWER]);
    let end = comm.now() + ANSWER_WITHIN;
    let answer = poll_fn(|context| {
        send.take_if(|send| Pin::new(send).poll(context).is_ready());
        match Pin::new(&mut receive).poll(context) {
            Poll::Ready(answer) => Poll::Ready(answer.ok()),
            Poll::Pending if comm.now() >= end => Poll::Ready(None),
            Poll::Pending => next_turn(context),
        }
    })
    .await;
    let (mut bytes, arrival) = answer?;
    bytes.truncate(arrival.lengths.iter().sum());
    Some(printable(&String::from_utf8_lossy(&bytes))).filter(|text| !text.is_empty())
}

fn envelope(source: Rank, ranks: &Ranks, round: u32) -> Envelope {
    let tag = Tag::new(source, CONTROL, u32::from(ranks.number) | u32::from(ranks.epoch) << 16, round);
    Envelope { tag, signature: Signature::default(), mark: Mark::NONE }
}

/// A peer's text without control characters.
fn printable(text: &str) -> String {
    text.chars().filter(|letter| !letter.is_control()).collect()
}

/// What a rank tells of its calls.
struct Told {
    calls: Vec<PastCall>,
    plans: Vec<Plan>,
}

/// What a comparison of two ranks has found.
#[derive(Clone, Debug, PartialEq)]
enum Finding {
    /// Their calls differ.
    Sure(String),
    /// They have no call in common that is still known; one may only be far behind.
    Behind(String),
}

/// Keeps the first sure finding, or else the first one.
fn keep_surer(kept: &mut Option<Finding>, found: Option<Finding>) {
    let is_surer = match kept {
        None => true,
        Some(Finding::Behind(_)) => matches!(found, Some(Finding::Sure(_))),
        Some(Finding::Sure(_)) => false,
    };
    if is_surer {
        *kept = found;
    }
}

/// A [plan](Description::of_plan) in words.
#[derive(Clone)]
struct Plan {
    digest: u64,
    /// The number of its parts.
    count: usize,
    /// A line for each part; of a long plan of a peer only the first ones.
    lines: Arc<[String]>,
}

/// The last plans of a group's calls.
#[derive(Default)]
pub(crate) struct Plans(Mutex<VecDeque<Plan>>);

impl Plans {
    /// The plans that are kept.
    const KEPT: usize = 16;

    pub(crate) fn note(&self, digest: u64, lines: impl Iterator<Item = String>) {
        let mut plans = self.0.lock();
        if !plans.iter().any(|plan| plan.digest == digest) {
            plans.truncate(Self::KEPT - 1);
            let lines: Arc<[String]> = lines.collect();
            plans.push_front(Plan { digest, count: lines.len(), lines });
        }
    }

    fn clone_all(&self) -> Vec<Plan> {
        self.0.lock().iter().cloned().collect()
    }

    /// A line with the digest and the number of lines, then the plan's lines; as many as have room.
    fn encode(plans: &[Plan]) -> Vec<u8> {
        let mut text = String::new();
        for plan in plans {
            let head = format!("={:x} {}", plan.digest, plan.count);
            for line in std::iter::once(&head).chain(&*plan.lines) {
                if text.len() + line.len() + 1 > MAX_PLANS {
                    return text.into_bytes();
                }
                text.extend([line.as_str(), "\n"]);
            }
        }
        text.into_bytes()
    }

    /// Any bytes are valid.
    fn decode(bytes: &[u8]) -> Vec<Plan> {
        let text = String::from_utf8_lossy(bytes);
        let plan = |plan: &str| {
            let mut lines = plan.lines();
            let (digest, count) = lines.next()?.split_once(' ')?;
            let digest = u64::from_str_radix(digest, 16).ok()?;
            Some(Plan { digest, count: count.parse().ok()?, lines: lines.map(printable).collect() })
        };
        text.strip_prefix('=').into_iter().flat_map(|text| text.split("\n=")).filter_map(plan).collect()
    }
}

/// Says how the calls of two ranks differ, if they do.
fn compare((own, ours): (Rank, &Told), (peer, theirs): (Rank, &Told)) -> Option<Finding> {
    let same = |our: &PastCall| theirs.calls.iter().find(|their| their.number == our.number);
    let mut common = ours.calls.iter().filter_map(|our| Some((our, same(our)?)));
    let Some((first, other)) = common.clone().next() else {
        let last = |told: &Told| told.calls.last().map(|call| call.number);
        let text = match (last(ours), last(theirs)) {
            (None, None) => return None,
            (Some(last), None) => format!("rank {peer} has made no call, the last of rank {own} is {last}"),
            (None, Some(last)) => format!("rank {own} has made no call, the last of rank {peer} is {last}"),
            (Some(ours), Some(theirs)) => {
                format!("the last call of rank {own} is {ours}, of rank {peer} {theirs}")
            }
        };
        return Some(Finding::Behind(text));
    };
    // The digest covers this call and all before it.
    if first.digest != other.digest && first.description == other.description {
        let number = first.number;
        return Some(Finding::Sure(format!(
            "ranks {own} and {peer} made different calls before call {number}, or with other settings"
        )));
    }
    let (our, their) = common.find(|(our, their)| our.description != their.description)?;
    let (number, this, that) = (our.number, our.description, their.description);
    if this.operation == that.operation
        && let Some(text) = compare_plans((own, ours, this.count), (peer, theirs, that.count))
    {
        return Some(Finding::Sure(format!("call {number} is {} with {text}", this.operation)));
    }
    Some(Finding::Sure(if this.to_string() == that.to_string() {
        format!(
            "call {number} of ranks {own} and {peer} is {this}, but not of the same objects, settings or \
             names"
        )
    } else {
        format!("call {number} is {this} on rank {own}, and {that} on rank {peer}")
    }))
}

/// Says in which line two plans differ, if both are known.
fn compare_plans(
    (own, ours, this): (Rank, &Told, u64),
    (peer, theirs, that): (Rank, &Told, u64),
) -> Option<String> {
    let plan = |told: &Told, digest| told.plans.iter().find(|plan| plan.digest == digest).cloned();
    let (ours, theirs) = (plan(ours, this)?, plan(theirs, that)?);
    let differs = ours.lines.iter().zip(&*theirs.lines).find(|(our, their)| our != their);
    match differs {
        Some((our, their)) => Some(format!("{our} on rank {own}, and {their} on rank {peer}")),
        None if ours.count == theirs.count => None,
        None => Some(format!("{} tensors on rank {own}, and {} on rank {peer}", ours.count, theirs.count)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::description::{Description, Operation};

    fn calls(descriptions: &[Description], first: u32) -> Vec<PastCall> {
        let log = crate::calls::Calls::new(Arc::default());
        for number in 0..first {
            log.make(&Description::new(Operation::BROADCAST, 1, number as usize), 0);
        }
        descriptions.iter().for_each(|description| _ = log.make(description, 0));
        log.last_calls()
    }

    fn told(peer: u32, ours: &[PastCall], theirs: &[PastCall]) -> Option<String> {
        let told = |calls: &[PastCall]| Told { calls: calls.to_vec(), plans: Vec::new() };
        text(compare((Rank(0), &told(ours)), (Rank(peer), &told(theirs))))
    }

    fn text(found: Option<Finding>) -> Option<String> {
        found.map(|(Finding::Sure(text) | Finding::Behind(text))| text)
    }

    #[test]
    fn the_first_tensor_that_differs_is_told() {
        let told = |tensors: &[&str]| {
            let description = Description::of_plan(Operation::EXCHANGE, tensors.concat().as_bytes());
            let plans = Plans::default();
            plans.note(description.count, tensors.iter().map(|tensor| (*tensor).to_owned()));
            let plans = Plans::decode(&Plans::encode(&plans.clone_all()));
            Told { calls: calls(&[description], 3), plans }
        };
        let own = told(&["tensor \"a\" of 64 elements, dense", "tensor \"b\""]);
        let text = |theirs: &Told| text(compare((Rank(0), &own), (Rank(1), theirs)));
        assert_eq!(text(&own), None);
        assert_eq!(
            text(&told(&["tensor \"a\" of 64 elements, dense", "tensor \"c\""])).unwrap(),
            "call 3 is gradient exchange with tensor \"b\" on rank 0, and tensor \"c\" on rank 1"
        );
        assert_eq!(
            text(&told(&["tensor \"a\" of 64 elements, dense"])).unwrap(),
            "call 3 is gradient exchange with 2 tensors on rank 0, and 1 on rank 1"
        );
    }

    #[test]
    fn long_plans_are_told_as_far_as_there_is_room() {
        let line = |tensor: usize| format!("tensor \"{tensor}\" of {} elements, dense", 64 + tensor);
        let told = |count: usize| {
            let text: String = (0..count).map(line).collect();
            let description = Description::of_plan(Operation::EXCHANGE, text.as_bytes());
            let plans = Plans::default();
            plans.note(description.count, (0..count).map(line));
            let plans = Plans::encode(&plans.clone_all());
            assert!(plans.len() <= MAX_PLANS && plans.len() + 64 > MAX_PLANS.min(count * 32));
            Told { calls: calls(&[description], 3), plans: Plans::decode(&plans) }
        };
        assert_eq!(
            text(compare((Rank(0), &told(5000)), (Rank(1), &told(5001)))).unwrap(),
            "call 3 is gradient exchange with 5000 tensors on rank 0, and 5001 on rank 1"
        );
    }

    #[test]
    fn a_sure_difference_is_kept_before_a_rank_that_is_behind() {
        let [sure, behind] = [Finding::Sure, Finding::Behind].map(|finding| Some(finding("text".to_owned())));
        for order in [[&sure, &behind], [&behind, &sure]] {
            let mut kept = None;
            order.into_iter().for_each(|found| keep_surer(&mut kept, found.clone()));
            assert_eq!(kept, sure);
        }
        let barrier = Description::new(Operation::BARRIER, 0, 0);
        let told = |calls: Vec<PastCall>| Told { calls, plans: Vec::new() };
        let (early, late) = (told(calls(&[barrier], 10)), told(calls(&[barrier], 200)));
        let found = compare((Rank(0), &early), (Rank(1), &late));
        assert!(matches!(found, Some(Finding::Behind(_))), "{found:?}");
        assert_eq!(compare((Rank(0), &told(Vec::new())), (Rank(1), &told(Vec::new()))), None);
    }

    #[test]
    fn the_first_difference_is_told() {
        let barrier = Description::new(Operation::BARRIER, 0, 0);
        let sum = |count| Description::new(Operation::ALL_REDUCE, 1, count);
        let told = |ours: &[PastCall], theirs: &[PastCall]| told(3, ours, theirs);
        let own = calls(&[barrier, sum(5), sum(6)], 10);
        assert_eq!(told(&own, &own), None);
        assert_eq!(
            told(&own, &calls(&[barrier, sum(4), sum(5)], 10)).unwrap(),
            "call 11 is all-reduce of 5 f32 on rank 0, and all-reduce of 4 f32 on rank 3"
        );
        assert_eq!(
            told(&own, &calls(&[barrier, sum(5).with_detail(7)], 10)).unwrap(),
            "call 11 of ranks 0 and 3 is all-reduce of 5 f32, but not of the same objects, settings or names"
        );
        // One call less on the peer, and far behind.
        let text = told(&own, &calls(&[barrier], 10));
        assert_eq!(text, None, "it may make them yet");
        let text = told(&calls(&[barrier], 200), &calls(&[barrier], 10)).unwrap();
        assert_eq!(text, "the last call of rank 0 is 200, of rank 3 10");
    }

    #[test]
    fn a_difference_before_the_calls_that_are_known_is_told() {
        let barrier = Description::new(Operation::BARRIER, 0, 0);
        let late = vec![barrier; 100];
        let (mut ours, mut theirs) = (calls(&late, 1), calls(&late, 1));
        assert_eq!(told(1, &ours, &theirs), None);
        let log = crate::calls::Calls::new(Arc::default());
        std::iter::repeat_n(&barrier, 101).for_each(|call| _ = log.make(call, 0));
        theirs = log.last_calls();
        let text = told(1, &ours, &theirs).unwrap();
        assert_eq!(text, "ranks 0 and 1 made different calls before call 37, or with other settings");
        ours.clear();
        let text = told(1, &ours, &theirs).unwrap();
        assert_eq!(text, "rank 0 has made no call, the last of rank 1 is 100");
    }

    /// A peer can send what it likes.
    #[test]
    fn strange_bytes_are_compared() {
        for length in 0..200 {
            let bytes: Vec<u8> = (0..length).map(|byte| byte ^ 0xa5).collect();
            let _ = told(1, &[], &PastCall::decode_all(&bytes));
            let plans: Vec<u8> = bytes.iter().map(|byte| b"=\n1 \xff"[*byte as usize % 5]).collect();
            let _ = (Plans::decode(&bytes), Plans::decode(&plans));
        }
    }
}
