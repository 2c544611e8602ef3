//! Taking lost ranks back.
//!
//! Ranks that were started again meet the lowest rank that is left at the place of return
//! ([`ucx_sys_wrap::bootstrap::Reception`]). It tells the others who has come, and then all of them
//! join a new world.
//!
//! Those who are left go there together, or stay in the old group ([`confirm`]).

mod confirm;

use std::future::Future;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, Ordering};
use std::task::{Context, Poll};
use std::thread::{self, Thread};
use std::time::{Duration, Instant};

use ucx_sys_wrap::bootstrap::{Cancel, Identity, Invitation, MAX_BLOB_BYTES, Member, Reception};
use ucx_sys_wrap::{Error as Transport, Rank};

use crate::elsewhere::Elsewhere;
use crate::error::{Error, Result};
use crate::group::{Group, Settings};
use crate::join::Join;

/// How often a rank that joins a new world looks whether the old group is still open.
const LOOK: Duration = Duration::from_millis(20);

/// The longest reason that other ranks are told.
const REASON_BYTES: usize = 1024;

const PART: &str = "call grow on a group of all ranks that are left";

const ALONE: &str = "its ranks have not joined a job: they are threads of one process, or simulated";

/// How the job of a world began, and who of its ranks is in the world.
pub(crate) struct Origin {
    /// Of this process, when the job began.
    identity: Identity,
    /// By the rank in the world, and whether each has come back to it.
    members: Vec<(Member, bool)>,
    absent: Vec<Member>,
}

impl Origin {
    /// Of the world with which the job begins.
    pub(crate) fn of(identity: Identity) -> Self {
        let member = |rank| (Member { rank, incarnation: 0 }, false);
        let members = Rank::all(identity.world_size).map(member).collect();
        Self { identity, members, absent: Vec::new() }
    }

    /// Of a world to which ranks come back, and how this process joins it.
    pub(crate) fn invited(identity: &Identity, invitation: &Invitation) -> Result<(Identity, Self)> {
        let accepted = invitation.accept(identity, identity.rank);
        let accepted = accepted.ok_or(Error::Transport(Transport::Protocol {
            rank: Rank(0),
            what: "an invitation of others".into(),
        }))?;
        let (members, absent) = (invitation.members().to_vec(), invitation.absent().to_vec());
        Ok((accepted, Self { identity: identity.clone(), members, absent }))
    }

    /// A rank of the world.
    fn member(&self, rank: Rank) -> Option<Member> {
        self.members.get(rank.index()).map(|(member, _)| *member)
    }

    /// The numbers of these ranks of the world in one that they are invited to, all of them.
    fn places(&self, ranks: &[Rank], invitation: &Invitation) -> Option<Vec<u32>> {
        let place = |rank: &Rank| {
            let own = (self.member(*rank)?, false);
            invitation.members().iter().position(|invited| *invited == own).map(|place| place as u32)
        };
        ranks.iter().map(place).collect()
    }

    /// Those of these ranks of the world, and all others of the job, in the order of their numbers.
    fn parted(&self, ranks: &[Rank]) -> (Vec<Member>, Vec<Member>) {
        let mut left: Vec<Member> = ranks.iter().filter_map(|rank| self.member(*rank)).collect();
        left.sort();
        let is_lost = |member: &Member| left.binary_search(member).is_err();
        let lost = self.members.iter().map(|(member, _)| *member).filter(is_lost);
        let mut lost: Vec<Member> = lost.chain(self.absent.iter().copied()).collect();
        lost.sort();
        (left, lost)
    }
}

/// # Taking lost ranks back
impl Group {
    /// A group of this one's ranks and of those lost ranks of the job that come back within `wait`; ends as
    /// soon as all are there. All ranks that are left call this, on an open group of them all, which has
    /// [shrunk](Self::shrink) as a rule. If nobody comes, or nobody is lost, the result is this group.
    ///
    /// Ranks that come back are new processes with the rank, world size, key and job of the lost ones, and an
    /// [`incarnation`](Join::incarnation) above 0: `brevity run --restart` starts them so. Their
    /// [`from_env`](Self::from_env) or [`Join::join`] ends when they are taken back. They meet the lowest
    /// rank of this group at the [place of return](Join::place_of_return).
    ///
    /// The new group is of a world of its own, with connections and memory of its own. Its ranks are in the
    /// order that they had when the job began: if all are back, each has the number that it had. Drop this
    /// group, and what was made of it, to close the old connections. [`returned`](Self::returned) says who
    /// is new. The new group may be closed already, if a rank is lost at once: shrink it as after any loss.
    ///
    /// Either all ranks that are left get the new group, or all get an error and stay in this one, whoever is
    /// lost meanwhile. A majority of them must be left, as in [`shrink`](Self::shrink): who can't learn how
    /// the others have decided gets [`Error::HasGrown`].
    ///
    /// Blocks the thread. Only the `wait` of the lowest rank counts. It should be half a second at least: who
    /// comes back calls four times a second. A lost rank whose process is still there is not waited for.
    /// Joining the new world may take a quarter of the timeout of joining.
    ///
    /// # Errors
    /// [`Error::NotGrown`] if the lowest rank can't listen, if other ranks of the world are there, as those
    /// of another part after a [`split`](Self::split), or if the group's ranks have not joined a job: the
    /// group is as before. Those of an all-reduce, for instance if another rank is lost meanwhile: the group
    /// can be shrunk, and grown then. [`Error::HasGrown`] if too few ranks are left to know which group
    /// goes on: this one is closed, and a majority of it may go on in the new one.
    pub fn grow(&self, wait: Duration) -> Result<Self> {
        self.check_process()?;
        let start = Instant::now();
        loop {
            match self.take_back(wait.saturating_sub(start.elapsed()))? {
                Grown::Next(next) => return Ok(next),
                Grown::Nobody => return Ok(self.clone()),
                Grown::NotAll => {}
            }
        }
    }

    /// Like [`grow`](Self::grow), on a thread of its own. If the future is dropped, the thread goes on, and
    /// the group is dropped there.
    pub fn grow_async(&self, wait: Duration) -> Growing {
        let group = self.clone();
        Growing(Elsewhere::start(
            "brevity grow",
            move || group.grow(wait),
            |error| Err(Error::Transport(Transport::system("can't start a thread that grows", error))),
        ))
    }

    /// The ranks of this group that have come back to the job by the [`grow`](Self::grow) that has made its
    /// world: they have no state yet, or only since then. The same on all ranks; empty before the first one.
    #[must_use]
    pub fn returned(&self) -> Vec<u32> {
        let Some(origin) = &self.context.world.origin else { return Vec::new() };
        let is_new = |rank: &Rank| origin.members.get(rank.index()).is_some_and(|(_, is_new)| *is_new);
        (0..).zip(self.members()).filter(|(_, rank)| is_new(rank)).map(|(place, _)| place).collect()
    }

    /// The number that each member had when the job began, by which its launcher knows it. Another one than
    /// that in the world ([`members`](Self::members)) after a [`grow`](Self::grow) to which some have not
    /// come.
    #[must_use]
    pub fn first_ranks(&self) -> Vec<Rank> {
        let first = |rank: &Rank| {
            let origin = self.context.world.origin.as_ref();
            origin.and_then(|origin| origin.member(*rank)).map_or(*rank, |member| member.rank)
        };
        self.members().iter().map(first).collect()
    }

    /// The number of ranks with which the job began.
    #[must_use]
    pub fn first_world_size(&self) -> u32 {
        let origin = self.context.world.origin.as_ref();
        origin.map_or_else(|| self.context.port().world_size(), |origin| origin.identity.world_size)
    }

    /// One attempt.
    fn take_back(&self, wait: Duration) -> Result<Grown> {
        let Some(origin) = &self.context.world.origin else {
            return Err(Error::NotGrown { rank: self.own(), why: ALONE.into() });
        };
        if let Some(error) = self.failure() {
            return Err(error);
        }
        if self.world_size() == origin.identity.world_size {
            return Ok(Grown::Nobody);
        }
        let lowest = self.members().iter().min().copied().unwrap_or_default();
        let leader = self.members().iter().position(|member| *member == lowest).unwrap_or_default() as u32;
        let mut millis = [u64::try_from(wait.as_millis()).unwrap_or(u64::MAX)];
        self.broadcast(&mut millis, leader)?;
        let own = (self.own() == lowest).then(|| match self.elsewhere() {
            Some(why) => Told::Failed(why),
            None => self.receive(origin, wait),
        });
        let _reserved = match &own {
            Some(Told::Invited(invitation)) => Some(Forgotten(invitation)),
            _ => None,
        };
        let mut told = own.as_ref().map_or_else(Vec::new, Told::encode);
        let mut length = [told.len() as u64];
        // Name service, a port that is still taken, and the answers of those who come take time too.
        let patience = Duration::from_millis(millis[0]).saturating_add(origin.identity.join_timeout);
        self.with_timeout(patience.saturating_add(self.timeout())).broadcast(&mut length, leader)?;
        told.resize(usize::try_from(length[0]).unwrap_or(usize::MAX).min(2 * MAX_BLOB_BYTES), 0);
        self.broadcast(&mut told, leader)?;
        let invitation = match Told::decode(&told, origin.identity.world_size) {
            Some(Told::Nobody) => return Ok(Grown::Nobody),
            Some(Told::Failed(why)) => return Err(Error::NotGrown { rank: lowest, why }),
            Some(Told::Invited(invitation)) => invitation,
            None => return Err(Error::Payload { rank: lowest, what: "no invitation".into() }),
        };
        let left = origin.places(self.members(), &invitation);
        let left = left.ok_or_else(|| Error::Payload { rank: lowest, what: "no invitation".into() })?;
        let joined = self.join_invited(origin, &invitation).map_err(|error| {
            tracing::warn!(%error, "can't join the group that grows");
        });
        let next = self.confirm(joined.ok(), &left, origin.identity.join_timeout)?;
        Ok(next.map_or(Grown::NotAll, Grown::Next))
    }

    /// Why this group can't grow, if ranks of its world go on in others: each part would become a world.
    fn elsewhere(&self) -> Option<String> {
        let (port, lost) = (self.context.port(), self.context.port().lost());
        let is_known = |rank: &Rank| self.members().contains(rank) || self.context.excluded.contains(rank);
        let living = Rank::all(port.world_size()).filter(|rank| !is_known(rank) && !lost.contains(rank));
        let living: Vec<String> =
            living.filter(|rank| !port.watch(*rank)).map(|rank| rank.0.to_string()).collect();
        let others = living.join(", ");
        let why = || format!("rank {others} of the world is there, and not in this group: {PART}");
        (!living.is_empty()).then(why)
    }

    /// Waits for lost ranks, and invites those that come. Gives up if this group is closed meanwhile.
    fn receive(&self, origin: &Origin, wait: Duration) -> Told {
        let (left, lost) = origin.parted(self.members());
        let port = self.context.port();
        // One that was left behind alive is not back before it has gone.
        let awaited = || {
            let own_lost = port.lost();
            let is_there = |lost: &&Member| {
                let place = origin.members.iter().position(|(member, _)| member.rank == lost.rank);
                let rank = place.map(|place| Rank(place as u32));
                rank.is_some_and(|rank| !own_lost.contains(&rank) && !port.watch(rank))
            };
            lost.iter().filter(|lost| !is_there(lost)).copied().collect::<Vec<Member>>()
        };
        let received = Reception::open(&origin.identity).and_then(|mut reception| {
            reception.wait(awaited, wait, || self.failure().is_some());
            if self.failure().is_some() { Ok(None) } else { reception.invite(&left, &lost) }
        });
        match received {
            Ok(Some(invitation)) => Told::Invited(invitation),
            Ok(None) => Told::Nobody,
            Err(error) => Told::Failed(error.to_string()),
        }
    }

    /// Joins the new world, unless this group is closed meanwhile.
    fn join_invited(&self, origin: &Origin, invitation: &Invitation) -> Result<Self> {
        let mut identity = origin.identity.clone();
        identity.rank = origin.member(self.own()).map_or(identity.rank, |member| member.rank);
        let (accepted, origin) = Origin::invited(&identity, invitation)?;
        // The costs are known, if the first rank is one that is left: they are that rank's.
        let is_left = invitation.members().first().is_some_and(|(_, is_new)| !is_new);
        let machine = is_left.then(|| *self.context.ranks.plan().machine());
        let settings = Settings { machine, timeout: self.timeout(), ..*self.settings() };
        let (cancel, end) = (Cancel::default(), AtomicBool::new(false));
        thread::scope(|threads| {
            let watch = || {
                while !end.load(Ordering::Relaxed) {
                    if self.failure().is_some() {
                        return cancel.cancel();
                    }
                    thread::park_timeout(LOOK);
                }
            };
            let watcher = thread::Builder::new().name("brevity grow".into()).spawn_scoped(threads, watch);
            // Also if joining panics. Without a watcher it has its deadline.
            let watcher = watcher.ok();
            let _ended = Ended(&end, watcher.as_ref().map(|watcher| watcher.thread()));
            cancel.during(|| Join::invited(accepted, settings).enter(Some(origin)))
        })
    }

    /// This rank's number in the world.
    fn own(&self) -> Rank {
        self.members().get(self.rank() as usize).copied().unwrap_or_default()
    }
}

/// A [`grow`](Group::grow) that goes on, on a thread of its own: [`Group::grow_async`].
///
/// # Panics
/// Like other futures, it panics if it is polled after it was ready.
#[must_use = "the new group is its result"]
pub struct Growing(Elsewhere<Result<Group>>);

impl Future for Growing {
    type Output = Result<Group>;

    /// # Panics
    /// With the panic of the call, if it panicked. If an earlier poll has returned the result.
    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Result<Group>> {
        Pin::new(&mut self.0).poll(context)
    }
}

/// What an attempt to grow ends with.
enum Grown {
    Next(Group),
    Nobody,
    /// All that are left stay, as not all have joined.
    NotAll,
}

/// Gives up the port of an invitation, if this process has reserved it and has not joined with it.
struct Forgotten<'a>(&'a Invitation);

impl Drop for Forgotten<'_> {
    fn drop(&mut self) {
        self.0.forget();
    }
}

/// Ends the watch of a join.
struct Ended<'a>(&'a AtomicBool, Option<&'a Thread>);

impl Drop for Ended<'_> {
    fn drop(&mut self) {
        self.0.store(true, Ordering::Relaxed);
        self.1.into_iter().for_each(Thread::unpark);
    }
}

/// What the lowest rank tells the others.
enum Told {
    Nobody,
    Invited(Invitation),
    Failed(String),
}

impl Told {
    /// A kind, and what belongs to it.
    fn encode(&self) -> Vec<u8> {
        match self {
            Self::Nobody => vec![0],
            Self::Invited(invitation) => [vec![1], invitation.encode()].concat(),
            Self::Failed(why) => {
                let end = (0..=why.len().min(REASON_BYTES)).rev().find(|end| why.is_char_boundary(*end));
                [&[2], &why.as_bytes()[..end.unwrap_or_default()]].concat()
            }
        }
    }

    fn decode(bytes: &[u8], world_size: u32) -> Option<Self> {
        match bytes.split_first()? {
            (0, []) => Some(Self::Nobody),
            (1, invitation) => Invitation::decode(invitation, world_size).map(Self::Invited),
            (2, why) => std::str::from_utf8(why).ok().map(|why| Self::Failed(why.into())),
            _ => None,
        }
    }
}
