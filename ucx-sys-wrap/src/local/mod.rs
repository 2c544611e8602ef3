//! The `local` transport: ranks are threads of one process.
//!
//! Every rank has a mailbox that its peers put messages into. A message of at most [`COPIED_BYTES`] bytes is
//! copied when it is posted, and its send has ended then. A larger one lends the sender's memory to the
//! receiver, which copies it once and returns the memory; then the send has ended.
//!
//! A rank leaves by dropping its transport. A peer that waits for it, or sends to it, loses it; until then
//! the peer can receive what it had sent.
#![forbid(unsafe_code)]

mod mailbox;
pub(crate) mod matching;
pub(crate) mod remote;
mod world;

use std::collections::VecDeque;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::{Duration, Instant};

use parking_lot::RwLock;

use self::mailbox::{Mail, Mailbox, Message, Payload, Returned, Taken, Why};
use self::matching::{HEADER_BYTES, Header, Key, Receives, accept, copy_parts};
use self::world::{Outgoing, World};
use crate::on_end::OnEnd;
use crate::table::Table;
use crate::transport::{
    Found, News, Notice, OperationId, Posted, RecvDone, RecvId, RecvParts, SendDone, SendId, SendParts,
    Statistics, Transport, Wanted, Which, check_peer,
};
use crate::{Envelope, Error, Failure, MAX_WORLD_SIZE, OneSided, Rank, Result};

/// Messages of at most this many bytes are copied when they are posted.
pub const COPIED_BYTES: usize = 4096;

/// Makes the transports of a world whose ranks are threads of this process, in rank order.
///
/// ```
/// use ucx_sys_wrap::buffer::{Port, scope};
/// use ucx_sys_wrap::{Envelope, Mark, Rank, Signature, Tag, local};
///
/// let tag = Tag::new(Rank(0), 0, 0, 0);
/// let envelope = Envelope { tag, signature: Signature::default(), mark: Mark::NONE };
/// let [sender, receiver] = <[_; 2]>::try_from(local::world(2)).ok().unwrap();
/// let sending = std::thread::spawn(move || {
///     let port = Port::new(Box::new(sender));
///     scope(&port, |comm| drop(comm.port().progress()), async |comm| {
///         comm.send(Rank(1), envelope, vec![1u32, 2, 3]).await.map(|_| ())
///     })
/// });
/// let port = Port::new(Box::new(receiver));
/// let mut place = [0u32; 4];
/// let (_, arrival) = scope(&port, |comm| drop(comm.port().progress()), async |comm| {
///     comm.recv(Rank(0), envelope, &mut place[..]).await
/// })?;
/// sending.join().unwrap()?;
/// assert_eq!(place, [1, 2, 3, 0]);
/// assert_eq!(arrival.lengths[0], 12);
/// # Ok::<(), ucx_sys_wrap::Error>(())
/// ```
///
/// # Panics
/// When `world_size` is above [`MAX_WORLD_SIZE`].
#[must_use]
pub fn world(world_size: u32) -> Vec<Local> {
    assert!(world_size <= MAX_WORLD_SIZE, "a world has at most {MAX_WORLD_SIZE} ranks");
    let mailboxes = Rank::all(world_size).map(|_| Mailbox::new()).collect();
    let regions = Rank::all(world_size).map(|_| RwLock::default()).collect();
    let world = Arc::new(World { start: Instant::now(), mailboxes, regions });
    let local = |rank| Local {
        rank,
        world: Arc::clone(&world),
        receives: Receives::default(),
        sends: Table::default(),
        posted: 0,
        found: None,
        mail: Mail::default(),
        lost: Vec::new(),
        news: VecDeque::new(),
        statistics: Statistics::default(),
        may_have_slept: false,
        has_moved: false,
        has_left: false,
    };
    Rank::all(world_size).map(local).collect()
}

/// One rank of a [`world`], to be moved to the rank's thread.
pub struct Local {
    rank: Rank,
    world: Arc<World>,
    receives: Receives,
    sends: Table<Outgoing>,
    posted: u64,
    /// What the last probe has found.
    found: Option<Key>,
    mail: Mail,
    lost: Vec<Rank>,
    news: VecDeque<News>,
    statistics: Statistics,
    may_have_slept: bool,
    /// Whether mail was taken since the last time that this rank wanted to sleep.
    has_moved: bool,
    has_left: bool,
}

impl crate::transport::sealed::Sealed for Local {}

impl Transport for Local {
    fn name(&self) -> &'static str {
        "local"
    }

    fn rank(&self) -> Rank {
        self.rank
    }

    fn world_size(&self) -> u32 {
        self.world.mailboxes.len() as u32
    }

    fn post_send(&mut self, to: Rank, envelope: Envelope, parts: SendParts) -> Posted<SendId, SendDone> {
        if let Err(error) = self.check_open(to) {
            return Posted::Done(SendDone { parts, result: Err(error) });
        }
        let header = Header::new(&envelope, &parts);
        let payload_bytes = header.payload_bytes();
        self.posted += 1;
        self.statistics.messages_sent += 1;
        self.statistics.bytes_sent += HEADER_BYTES + payload_bytes as u64;
        let key = Key { source: self.rank, tag: envelope.tag, sequence: self.posted };
        if payload_bytes <= COPIED_BYTES && self.world.mailboxes[to.index()].has_room(payload_bytes) {
            Posted::Done(self.send_copy(to, key, header, parts))
        } else {
            self.lend(to, key, header, parts)
        }
    }

    fn post_recv(
        &mut self,
        from: Rank,
        envelope: Envelope,
        mut parts: RecvParts,
    ) -> Posted<RecvId, RecvDone> {
        self.progress();
        if let Err(error) = self.check_open(from) {
            self.unclaim();
            return Posted::Done(RecvDone { parts, result: Err(error) });
        }
        // Receives of one tag match in order.
        if self.receives.expects(from, envelope.tag) {
            return Posted::Pending(self.receives.post(from, &envelope, parts));
        }
        let mut outdated = Vec::new();
        let epoch = envelope.signature.epoch();
        let taken = self.world.mailboxes[self.rank.index()].take(from, envelope.tag, epoch, &mut outdated);
        self.give_back_all(outdated);
        match taken {
            Taken::Nothing => Posted::Pending(self.receives.post(from, &envelope, parts)),
            Taken::PeerHasLeft => Posted::Done(RecvDone { parts, result: Err(self.lose_left(from)) }),
            Taken::Message(Message { header, payload }) => {
                let slices = payload.slices(&header);
                let result =
                    accept(from, envelope.signature, &mut parts, &header, slices, &mut self.statistics);
                self.world.give_back(from, payload, Why::Received);
                Posted::Done(RecvDone { parts, result })
            }
        }
    }

    fn test_send(&mut self, id: SendId) -> Option<SendDone> {
        self.sends.remove_if(id.0, |send| send.done.is_some())?.done
    }

    fn test_recv(&mut self, id: RecvId) -> Option<RecvDone> {
        self.receives.test(id)
    }

    fn on_end(&mut self, operation: OperationId) -> Option<&mut OnEnd> {
        match operation {
            OperationId::Send(id) => Some(&mut self.sends.get_mut(id.0)?.on_end),
            OperationId::Recv(id) => self.receives.on_end(id),
            OperationId::Access(_) => None,
        }
    }

    /// Takes the message back if it is unmatched. Otherwise the receiver is copying it and the send ends
    /// soon.
    fn cancel_send(&mut self, id: SendId) {
        if let Some(send) = self.sends.get_mut(id.0) {
            send.take_back(&self.world, &Error::Canceled);
        }
    }

    fn cancel_recv(&mut self, id: RecvId) {
        self.receives.cancel(id);
    }

    fn withdraw_recv(&mut self, id: RecvId) -> bool {
        self.receives.withdraw(id)
    }

    fn probe(&mut self, wanted: &Wanted) -> Option<Found> {
        let own = &self.world.mailboxes[self.rank.index()];
        let (key, found) = own.find(&self.receives, wanted, self.world_size())?;
        self.found = Some(key);
        Some(found)
    }

    /// Its sender may take it back at any time.
    fn claim(&mut self) -> bool {
        self.found.take().is_some_and(|key| self.world.mailboxes[self.rank.index()].claim(key))
    }

    fn unclaim(&mut self) {
        if let Some((from, message)) = self.world.mailboxes[self.rank.index()].unclaim() {
            self.world.give_back(from, message.payload, Why::WantedBack);
        }
    }

    fn progress(&mut self) -> bool {
        let mailbox = &self.world.mailboxes[self.rank.index()];
        if std::mem::take(&mut self.may_have_slept) {
            mailbox.disarm();
        }
        if !mailbox.has_changed() {
            return false;
        }
        let mut mail = std::mem::take(&mut self.mail);
        mailbox.receive_mail(&mut self.receives, &mut mail);
        self.news.extend(mail.notices.drain(..).map(|(from, notice)| News::Told(from, notice)));
        self.take_messages(&mut mail);
        self.take_returned(&mut mail);
        self.give_up_the_missed(&mail);
        self.mail = mail;
        // Also if no operation waited for it: whoever probes has to look again.
        self.has_moved = true;
        true
    }

    fn now(&self) -> Duration {
        self.world.start.elapsed()
    }

    fn arm(&mut self) -> Option<Arc<OwnedFd>> {
        self.may_have_slept = true;
        if std::mem::take(&mut self.has_moved) {
            return None;
        }
        self.world.mailboxes[self.rank.index()].arm()
    }

    fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.world.mailboxes[self.rank.index()].descriptor()
    }

    fn watch(&mut self, peer: Rank) -> bool {
        self.world.mailboxes[self.rank.index()].has_left(peer)
    }

    fn next_news(&mut self) -> Option<News> {
        self.news.pop_front()
    }

    fn lose(&mut self, peer: Rank, error: Error) {
        if self.lost.contains(&peer) || self.has_left {
            return;
        }
        // What peers have told comes before a loss that may follow from it.
        let notices = self.world.mailboxes[self.rank.index()].take_notices();
        self.news.extend(notices.into_iter().map(|(from, notice)| News::Told(from, notice)));
        self.lost.push(peer);
        let dropped = self.world.mailboxes[self.rank.index()].refuse(peer);
        self.give_back_all(dropped);
        self.receives.end_if(&error, |source, _| source == peer);
        for send in self.sends.iter_mut().filter(|send| send.to == peer) {
            send.take_back(&self.world, &error);
        }
        self.news.push_back(News::Lost(peer, error));
    }

    fn tell(&mut self, peer: Rank, notice: Notice) {
        if !self.lost.contains(&peer)
            && let Some(mailbox) = self.world.mailboxes.get(peer.index())
        {
            mailbox.tell(self.rank, notice);
        }
    }

    fn end_context(&mut self, context: u16, _: Failure, error: &Error) {
        self.receives.end_if(error, |_, tag| tag.group() == context);
        for send in self.sends.iter_mut().filter(|send| send.key.tag.group() == context) {
            send.take_back(&self.world, error);
        }
    }

    fn discard(&mut self, context: u16, which: Which) -> usize {
        let outdated = self.world.mailboxes[self.rank.index()].take_context(context, which);
        let count = outdated.len();
        self.give_back_all(outdated);
        count
    }

    /// Leaves the world, after waiting for peers that are copying from this rank's memory.
    fn abandon(&mut self) -> Result<()> {
        self.leave();
        Ok(())
    }

    fn statistics(&self) -> Statistics {
        self.statistics
    }

    fn one_sided(&mut self) -> &mut dyn OneSided {
        self
    }
}

impl Drop for Local {
    fn drop(&mut self) {
        self.leave();
    }
}

impl Local {
    fn check_open(&self, peer: Rank) -> Result<()> {
        if self.has_left {
            return Err(Error::Closed);
        }
        check_peer(peer, self.rank, self.world_size())?;
        if self.lost.contains(&peer) { Err(Error::PeerLost { rank: peer }) } else { Ok(()) }
    }

    /// Drops messages of earlier contexts, as if received.
    fn give_back_all(&mut self, messages: Vec<(Rank, Message)>) {
        for (from, message) in messages {
            self.world.give_back(from, message.payload, Why::Received);
        }
    }

    fn send_copy(&mut self, to: Rank, key: Key, header: Header, parts: SendParts) -> SendDone {
        let payload = Payload::Copied(copy_parts(&parts, &mut self.statistics));
        let message = Message { header, payload };
        let refused = self.world.mailboxes[to.index()].put(key, message);
        SendDone { parts, result: refused.map_or(Ok(()), |_| Err(self.lose_needed(to))) }
    }

    fn lend(&mut self, to: Rank, key: Key, header: Header, parts: SendParts) -> Posted<SendId, SendDone> {
        let id = SendId(self.sends.insert(Outgoing { to, key, done: None, on_end: OnEnd::default() }));
        let message = Message { header, payload: Payload::Lent(id, parts) };
        let Some(refused) = self.world.mailboxes[to.index()].put(key, message) else {
            return Posted::Pending(id);
        };
        self.sends.remove_if(id.0, |_| true);
        let parts = match refused.payload {
            Payload::Lent(_, parts) => parts,
            Payload::Copied(_) => SendParts::new(),
        };
        Posted::Done(SendDone { parts, result: Err(self.lose_needed(to)) })
    }

    fn take_messages(&mut self, mail: &mut Mail) {
        self.give_back_all(std::mem::take(&mut mail.outdated));
        for (from, id, Message { header, payload }) in mail.messages.drain(..) {
            self.receives.deliver(id, &header, payload.slices(&header), &mut self.statistics);
            self.world.give_back(from, payload, Why::Received);
        }
    }

    fn take_returned(&mut self, mail: &mut Mail) {
        for Returned { id, parts, why } in mail.returned.drain(..) {
            let Some(to) = self.sends.get_mut(id.0).map(|send| send.to) else { continue };
            let result = match why {
                Why::Received => Ok(()),
                Why::Left => Err(self.lose_left(to)),
                Why::WantedBack => Err(Error::Canceled),
            };
            if let Some(send) = self.sends.get_mut(id.0) {
                send.end(SendDone { parts, result });
            }
        }
    }

    /// Gives up the peers that have left although an operation waits for them.
    fn give_up_the_missed(&mut self, mail: &Mail) {
        let missed: Vec<Rank> =
            mail.left.iter().copied().filter(|peer| self.receives.waits_for(*peer)).collect();
        missed.iter().for_each(|peer| drop(self.lose_left(*peer)));
    }

    /// Gives up a peer that has left and is sent something, once the receives have what it had sent. Returns
    /// the error of operations with it.
    fn lose_needed(&mut self, peer: Rank) -> Error {
        self.progress();
        self.lose_left(peer)
    }

    /// Gives up a peer that has left although it is needed. Returns the error of operations with it.
    fn lose_left(&mut self, peer: Rank) -> Error {
        // What it told before it left comes first.
        let told = self.world.mailboxes[self.rank.index()].take_notices();
        self.news.extend(told.into_iter().map(|(from, notice)| News::Told(from, notice)));
        let error = Error::PeerLost { rank: peer };
        self.lose(peer, error.clone());
        error
    }

    fn end_all(&mut self, error: &Error) {
        self.receives.end_if(error, |_, _| true);
        for send in self.sends.iter_mut() {
            send.take_back(&self.world, error);
        }
    }

    /// Returns lent memory, ends all operations, and tells the peers.
    fn leave(&mut self) {
        if std::mem::replace(&mut self.has_left, true) {
            return;
        }
        for (from, message) in self.world.mailboxes[self.rank.index()].close() {
            self.world.give_back(from, message.payload, Why::Left);
        }
        self.end_all(&Error::Canceled);
        while self.sends.iter_mut().any(|send| send.done.is_none()) {
            if !self.progress() {
                std::thread::yield_now();
            }
        }
        for peer in Rank::all(self.world_size()).filter(|peer| *peer != self.rank) {
            self.world.mailboxes[peer.index()].peer_left(self.rank);
        }
    }
}
