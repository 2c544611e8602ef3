//! Moves the messages of an agreement.

use std::future::{Future, poll_fn};
use std::pin::Pin;
use std::sync::Weak;
use std::task::{Context, Poll};
use std::time::Duration;

use ucx_sys_wrap::buffer::next_turn;
use ucx_sys_wrap::{Error as Fault, Found, Rank, Tag, Wanted};

use super::agreement::{Agreement, Outcome};
use super::message::{GroupId, Message, most_bytes};
use crate::context::Ranks;
use crate::error::Result;
use crate::messages::Mail;
use crate::world::World;

/// The tag of these messages in the context for control.
const TAG: u32 = 1;

/// How long a decision waits for its messages to leave, to members that take none.
const LEAVE_WITHIN: Duration = Duration::from_secs(1);

/// How many members are watched in a look.
const WATCHED_AT_ONCE: usize = 8;

type Arriving<'a> = Pin<Box<dyn Future<Output = std::result::Result<Vec<u8>, Fault>> + Send + 'a>>;
type Leaving<'a> = Pin<Box<dyn Future<Output = ()> + Send + 'a>>;

struct Serving<'a, 'env, 'g> {
    mail: Mail<'a, 'env>,
    /// The closed context.
    ranks: &'g Ranks,
    group: GroupId,
    agreement: &'g mut Agreement,
    world: &'g Weak<World>,
    arriving: Vec<(Rank, Arriving<'a>)>,
    leaving: Vec<Leaving<'a>>,
    polls: usize,
    ended_at: Option<Duration>,
}

/// Serves until the agreement has an outcome.
pub(super) async fn serve(
    mail: Mail<'_, '_>,
    (ranks, group): (&Ranks, GroupId),
    agreement: &mut Agreement,
    world: &Weak<World>,
) -> Result<()> {
    let (arriving, leaving) = (Vec::new(), Vec::new());
    let mut serving =
        Serving { mail, ranks, group, agreement, world, arriving, leaving, polls: 0, ended_at: None };
    let ended = poll_fn(|context| serving.poll(context)).await;
    if let Some(world) = world.upgrade() {
        world.agreements.keep(group, serving.agreement);
    }
    ended.map_err(|fault| mail.ranks.error(fault))
}

impl Serving<'_, '_, '_> {
    fn poll(&mut self, context: &mut Context<'_>) -> Poll<std::result::Result<(), Fault>> {
        loop {
            let comm = self.mail.comm;
            if comm.is_given_up() || comm.has_expired() {
                return Poll::Ready(Ok(()));
            }
            let now = comm.now();
            self.look_for_the_gone();
            let mut moved = self.begin_to_receive()?;
            moved |= self.receive(context, now);
            self.agreement.look(now);
            moved |= self.send(context);
            if self.agreement.outcome().is_some() {
                let ended_at = *self.ended_at.get_or_insert(now);
                // A message about another group that has begun to come is kept for that.
                let is_idle = self.leaving.is_empty() && self.arriving.is_empty();
                if is_idle || now.saturating_sub(ended_at) >= LEAVE_WITHIN {
                    return Poll::Ready(Ok(()));
                }
            }
            if !moved {
                return next_turn(context);
            }
        }
    }

    /// Posts receives of the messages that have come. Returns whether there were any.
    fn begin_to_receive(&mut self) -> std::result::Result<bool, Fault> {
        let Mail { comm, ranks } = self.mail;
        let before = self.arriving.len();
        loop {
            let (context, epoch, after) = (ranks.number, ranks.epoch, ranks.messages.last());
            let wanted = Wanted { context, epoch, source: None, tag: Some(TAG), after };
            let limit = most_bytes(ranks.size());
            let place = |found: &Found| {
                let bytes = found.lengths.iter().sum::<usize>();
                // The transport drops what does not fit.
                Some(vec![0; if bytes <= limit { bytes } else { 0 }])
            };
            let Some((found, receive)) = comm.recv_found(&wanted, ranks.signature(), place)? else { break };
            ranks.messages.took(found.tag.source());
            let arriving = Box::pin(async move {
                receive.await.map(|(mut bytes, arrival)| {
                    bytes.truncate(arrival.lengths.iter().sum());
                    bytes
                })
            });
            self.arriving.push((found.tag.source(), arriving));
        }
        Ok(self.arriving.len() > before)
    }

    /// Takes what has come: about this group, here or in a call of another thread.
    fn receive(&mut self, context: &mut Context<'_>, now: Duration) -> bool {
        let mut came = Vec::new();
        self.arriving.retain_mut(|(source, arriving)| match arriving.as_mut().poll(context) {
            Poll::Pending => true,
            Poll::Ready(ended) => {
                // Too long, or of a sender that is gone: nothing of this group.
                came.extend(ended.ok().map(|bytes| (*source, bytes)));
                false
            }
        });
        let Some(world) = self.world.upgrade() else { return false };
        came.extend(world.agreements.strayed(self.group));
        let moved = !came.is_empty();
        for (source, bytes) in came {
            match GroupId::of_message(&bytes) {
                Some(group) if group == self.group => {
                    if let (Some(place), Some(message)) =
                        (self.ranks.place(source), Message::decode(&bytes, self.ranks.size()))
                    {
                        self.agreement.receive(place, message, now);
                    }
                }
                Some(group) => match world.agreements.decided(group) {
                    Some(value) if !Self::is_final(&bytes, &value) => {
                        self.post(source, Message::Decided(value).encode(group));
                    }
                    Some(_) => {}
                    None => world.agreements.stray(source, bytes),
                },
                None => {}
            }
        }
        moved
    }

    /// Whether a message about a group that was decided needs no answer.
    fn is_final(bytes: &[u8], value: &super::Value) -> bool {
        let size = value.members.last().map_or(0, |last| last + 1);
        matches!(Message::decode(bytes, size.max(1)), Some(Message::Decided(_) | Message::GivenUp(..)))
    }

    fn post(&mut self, to: Rank, bytes: Vec<u8>) {
        let Mail { comm, ranks } = self.mail;
        let envelope = ranks.envelope(Tag::of_user(comm.port().rank(), ranks.number, TAG));
        let sending = comm.send(to, envelope, bytes);
        // Of a receiver that is gone this rank hears anyhow.
        self.leaving.push(Box::pin(async move { drop(sending.await) }));
    }

    fn send(&mut self, context: &mut Context<'_>) -> bool {
        let mut moved = false;
        while let Some((place, message)) = self.agreement.next_message() {
            let bytes = message.encode(self.group);
            self.post(self.ranks.member(place), bytes);
            moved = true;
        }
        self.leaving.retain_mut(|leaving| leaving.as_mut().poll(context).is_pending());
        moved
    }

    /// Tells the agreement of members that are lost or have left.
    fn look_for_the_gone(&mut self) {
        let count = self.polls;
        self.polls = count.wrapping_add(1);
        if self.agreement.outcome().is_some_and(|outcome| matches!(outcome, Outcome::Decided(_))) {
            return;
        }
        let (port, size) = (self.mail.comm.port(), self.ranks.size() as usize);
        let watched = (0..size.min(WATCHED_AT_ONCE)).map(|place| (count * WATCHED_AT_ONCE + place) % size);
        let left = watched.filter(|place| {
            let place = *place as u32;
            place != self.ranks.own && !self.agreement.is_gone(place) && port.watch(self.ranks.member(place))
        });
        let left: Vec<u32> = left.map(|place| place as u32).collect();
        let lost = port.lost().into_iter().filter_map(|lost| self.ranks.place(lost));
        lost.chain(left).for_each(|place| self.agreement.lose(place));
    }
}
