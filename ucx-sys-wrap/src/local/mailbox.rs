//! The mailbox of a rank: messages for it, and its own memory returned by receivers.

use std::collections::BTreeMap;
use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use parking_lot::Mutex;
use rustix::event::{EventfdFlags, eventfd};

use super::matching::{Header, Key, Receives, find, first_of};
use crate::transport::{Found, Notice, RecvId, SendId, SendParts, Wanted, Which};
use crate::{Rank, Tag};

/// The limit of copied payload in one mailbox. Beyond it, small messages are lent like large ones.
const COPIED_BYTES_LIMIT: usize = 16 << 20;

pub(super) struct Message {
    pub(super) header: Header,
    pub(super) payload: Payload,
}

pub(super) enum Payload {
    /// The concatenated parts.
    Copied(Vec<u8>),
    /// The sender's memory, to be returned under this id.
    Lent(SendId, SendParts),
}

/// Memory that is returned to its sender.
pub(super) struct Returned {
    pub(super) id: SendId,
    pub(super) parts: SendParts,
    pub(super) why: Why,
}

/// Why memory is returned.
#[derive(Clone, Copy)]
pub(super) enum Why {
    /// The peer has received the message.
    Received,
    /// It has left before.
    Left,
    /// The sender wanted it back while the peer had a claim on it, which it has given up.
    WantedBack,
}

/// What the owner finds in its mailbox.
#[derive(Default)]
pub(super) struct Mail {
    pub(super) messages: Vec<(Rank, RecvId, Message)>,
    /// Messages of another epoch than the receive of their tag, and their senders.
    pub(super) outdated: Vec<(Rank, Message)>,
    pub(super) notices: Vec<(Rank, Notice)>,
    pub(super) returned: Vec<Returned>,
    /// All peers that have left so far.
    pub(super) left: Vec<Rank>,
}

/// The result of [`Mailbox::take`].
pub(super) enum Taken {
    Message(Message),
    Nothing,
    PeerHasLeft,
}

/// Written by all peers and read by its owner. No thread holds the locks of two mailboxes, or copies payload
/// under a lock.
pub(super) struct Mailbox {
    inbox: Mutex<Inbox>,
    copied_bytes: AtomicUsize,
    changed: AtomicBool,
    armed: AtomicBool,
    event: Option<Arc<OwnedFd>>,
}

#[derive(Default)]
struct Inbox {
    messages: BTreeMap<Key, Message>,
    /// The message that the owner makes a place for, and whether its sender wants it back.
    claimed: Option<(Key, bool)>,
    /// Keys of messages that the owner has not seen; some may have been taken since.
    fresh: Vec<Key>,
    returned: Vec<Returned>,
    notices: Vec<(Rank, Notice)>,
    left: Vec<Rank>,
    /// The peers that the owner has given up.
    refused: Vec<Rank>,
    closed: bool,
}

impl Mailbox {
    pub(super) fn new() -> Self {
        Self {
            inbox: Mutex::default(),
            copied_bytes: AtomicUsize::new(0),
            changed: AtomicBool::new(false),
            armed: AtomicBool::new(false),
            // Without a descriptor the owner polls instead of sleeping.
            event: eventfd(0, EventfdFlags::CLOEXEC | EventfdFlags::NONBLOCK).ok().map(Arc::new),
        }
    }

    pub(super) fn has_room(&self, bytes: usize) -> bool {
        self.copied_bytes.load(Ordering::Relaxed) + bytes <= COPIED_BYTES_LIMIT
    }

    /// Puts a message in, or returns it if the owner has left, or has given up its sender.
    #[must_use]
    pub(super) fn put(&self, key: Key, message: Message) -> Option<Message> {
        let mut inbox = self.inbox.lock();
        if inbox.closed || inbox.refused.contains(&key.source) {
            return Some(message);
        }
        self.copied_bytes.fetch_add(message.copied_bytes(), Ordering::Relaxed);
        inbox.messages.insert(key, message);
        inbox.fresh.push(key);
        drop(inbox);
        self.wake();
        None
    }

    /// Takes an unmatched message back for its sender. One that the owner has a claim on stays; it comes back
    /// if the owner gives it up.
    pub(super) fn take_back(&self, key: &Key) -> Option<SendParts> {
        let mut inbox = self.inbox.lock();
        if let Some((claimed, wants_back)) = &mut inbox.claimed
            && claimed == key
        {
            *wants_back = true;
            return None;
        }
        match self.remove(&mut inbox, key)?.payload {
            Payload::Lent(_, parts) => Some(parts),
            Payload::Copied(_) => None,
        }
    }

    pub(super) fn give_back(&self, returned: Returned) {
        self.inbox.lock().returned.push(returned);
        self.wake();
    }

    pub(super) fn tell(&self, from: Rank, notice: Notice) {
        let mut inbox = self.inbox.lock();
        if inbox.closed {
            return;
        }
        inbox.notices.push((from, notice));
        drop(inbox);
        self.wake();
    }

    pub(super) fn take_notices(&self) -> Vec<(Rank, Notice)> {
        std::mem::take(&mut self.inbox.lock().notices)
    }

    pub(super) fn has_left(&self, peer: Rank) -> bool {
        self.inbox.lock().left.contains(&peer)
    }

    pub(super) fn peer_left(&self, peer: Rank) {
        self.inbox.lock().left.push(peer);
        self.wake();
    }

    /// Takes the oldest message of a source, tag and epoch for the owner. Those of other epochs before it
    /// go to `outdated`.
    pub(super) fn take(
        &self,
        source: Rank,
        tag: Tag,
        epoch: u8,
        outdated: &mut Vec<(Rank, Message)>,
    ) -> Taken {
        let mut inbox = self.inbox.lock();
        while let Some(message) =
            first_of(&inbox.messages, source, tag).and_then(|key| self.remove(&mut inbox, &key))
        {
            if message.header.signature.epoch() == epoch {
                return Taken::Message(message);
            }
            outdated.push((source, message));
        }
        if inbox.left.contains(&source) { Taken::PeerHasLeft } else { Taken::Nothing }
    }

    /// The first message that is wanted and that no receive waits for.
    pub(super) fn find(&self, receives: &Receives, wanted: &Wanted, world_size: u32) -> Option<(Key, Found)> {
        find(&self.inbox.lock().messages, receives, wanted, world_size, |message| &message.header)
    }

    /// Keeps a message for the owner until it takes it or gives the claim up. Returns whether it is there.
    pub(super) fn claim(&self, key: Key) -> bool {
        let mut inbox = self.inbox.lock();
        let is_there = inbox.messages.contains_key(&key);
        inbox.claimed = is_there.then_some((key, false));
        is_there
    }

    /// Gives a claim up. Returns the message if its sender wanted it back meanwhile.
    pub(super) fn unclaim(&self) -> Option<(Rank, Message)> {
        let mut inbox = self.inbox.lock();
        match inbox.claimed.take()? {
            (key, true) => Some((key.source, self.remove(&mut inbox, &key)?)),
            (_, false) => None,
        }
    }

    /// Takes some messages of a context.
    pub(super) fn take_context(&self, context: u16, which: Which) -> Vec<(Rank, Message)> {
        let mut inbox = self.inbox.lock();
        self.take_all(&mut inbox, |key, header| {
            key.tag.group() == context && which.includes(key.tag, header.signature)
        })
    }

    /// Takes no more messages of a peer that the owner gives up, and returns those that are there.
    pub(super) fn refuse(&self, peer: Rank) -> Vec<(Rank, Message)> {
        let mut inbox = self.inbox.lock();
        inbox.refused.push(peer);
        self.take_all(&mut inbox, |key, _| key.source == peer)
    }

    fn take_all(&self, inbox: &mut Inbox, is_meant: impl Fn(&Key, &Header) -> bool) -> Vec<(Rank, Message)> {
        let meant = inbox.messages.iter().filter(|(key, message)| is_meant(key, &message.header));
        let keys: Vec<Key> = meant.map(|(key, _)| *key).collect();
        keys.iter().filter_map(|key| Some((key.source, self.remove(inbox, key)?))).collect()
    }

    /// Takes all mail for the owner, with those messages that match a posted receive, which it claims.
    pub(super) fn receive_mail(&self, receives: &mut Receives, mail: &mut Mail) {
        let mut guard = self.inbox.lock();
        let inbox = &mut *guard;
        mail.returned.append(&mut inbox.returned);
        mail.notices.append(&mut inbox.notices);
        mail.left.clone_from(&inbox.left);
        let mut fresh = std::mem::take(&mut inbox.fresh);
        for Key { source, tag, .. } in fresh.drain(..) {
            while let Some(epoch) = receives.epoch(source, tag)
                && let Some(key) = first_of(&inbox.messages, source, tag)
                && let Some(message) = self.remove(inbox, &key)
            {
                if message.header.signature.epoch() != epoch {
                    mail.outdated.push((source, message));
                    continue;
                }
                if let Some(id) = receives.claim(source, tag) {
                    mail.messages.push((source, id, message));
                }
                break;
            }
        }
        inbox.fresh = fresh;
    }

    /// Closes the mailbox of an owner that leaves, and returns its messages.
    pub(super) fn close(&self) -> Vec<(Rank, Message)> {
        let mut inbox = self.inbox.lock();
        inbox.closed = true;
        inbox.fresh.clear();
        std::mem::take(&mut inbox.messages).into_iter().map(|(key, message)| (key.source, message)).collect()
    }

    pub(super) fn is_closed(&self) -> bool {
        self.inbox.lock().closed
    }

    /// Marks the mailbox as changed, and wakes the owner if it sleeps.
    pub(super) fn wake(&self) {
        self.changed.store(true, Ordering::SeqCst);
        if self.armed.load(Ordering::SeqCst)
            && self.armed.swap(false, Ordering::SeqCst)
            && let Some(event) = &self.event
        {
            // The counter can't overflow: the owner empties it before it arms again.
            let _ = rustix::io::write(event, &1u64.to_ne_bytes());
        }
    }

    /// Whether the mailbox has changed since the last call.
    pub(super) fn has_changed(&self) -> bool {
        self.changed.load(Ordering::Relaxed) && self.changed.swap(false, Ordering::SeqCst)
    }

    /// The descriptor that wakes the owner, if there is one.
    pub(super) fn descriptor(&self) -> Option<Arc<OwnedFd>> {
        self.event.clone()
    }

    /// Arms the descriptor that wakes the owner; `None` if the mailbox has changed.
    pub(super) fn arm(&self) -> Option<Arc<OwnedFd>> {
        let event = self.event.as_ref()?;
        // The owner arms before it checks, and peers check after their change, so one sees the other.
        self.armed.store(true, Ordering::SeqCst);
        if self.changed.load(Ordering::SeqCst) {
            self.armed.store(false, Ordering::SeqCst);
            return None;
        }
        Some(Arc::clone(event))
    }

    /// Disarms and drains the descriptor.
    pub(super) fn disarm(&self) {
        self.armed.store(false, Ordering::SeqCst);
        if let Some(event) = &self.event {
            // Nothing to read if no peer has woken the owner.
            let _ = rustix::io::read(event, &mut [0u8; 8]);
        }
    }

    fn remove(&self, inbox: &mut Inbox, key: &Key) -> Option<Message> {
        let message = inbox.messages.remove(key)?;
        inbox.claimed = inbox.claimed.filter(|(claimed, _)| claimed != key);
        self.copied_bytes.fetch_sub(message.copied_bytes(), Ordering::Relaxed);
        Some(message)
    }
}

impl Message {
    fn copied_bytes(&self) -> usize {
        match &self.payload {
            Payload::Copied(bytes) => bytes.len(),
            Payload::Lent(..) => 0,
        }
    }
}

impl Payload {
    /// The parts of the message with this header.
    pub(super) fn slices<'a>(&'a self, header: &'a Header) -> impl Iterator<Item = &'a [u8]> {
        let mut start = 0;
        header.lengths.iter().enumerate().map(move |(part, length)| {
            let from = start;
            start += length;
            match self {
                Payload::Copied(bytes) => &bytes[from..start],
                Payload::Lent(_, parts) => parts[part].bytes(),
            }
        })
    }
}
