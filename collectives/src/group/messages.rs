//! Messages between two ranks of a group.

use std::sync::Arc;
use std::time::Duration;

use ucx_sys_wrap::Tag;
use ucx_sys_wrap::buffer::Comm;

use super::{CallFuture, Group};
use crate::data::Element;
use crate::engine::{Handle, join};
use crate::error::{Error, Result};
use crate::messages::{Mail, Message, Pick, Place, Turn};

/// # Messages between two ranks
///
/// Any rank may send to any other, and to itself, beside the collectives and in any order. A message has a
/// tag of 31 bits that its sender chooses. Messages of one sender and tag are received in the order in which
/// they were sent. Ranks are those of the group.
///
/// **Which message.** A receive names its source and its tag; `None` is any. Sources have their turns: of
/// several that have sent, the one behind the source of the last message comes first. A receive of one source
/// and one tag into a slice is *posted* and gets its message as it comes; others look for messages that have
/// come and have no such receive.
///
/// **Memory.** A send ends when its memory may be used again: the receiver may not have the message yet.
/// Short messages do not wait for their receive while the receiver has credit for them (64 MiB from each rank
/// over sockets and shared memory, 1 MiB over UCX, for collectives and messages together). Then, and always
/// if it is long (above 1 MiB; 32 KiB over UCX), a message waits in the sender's memory until it is received.
/// So a receiver that does not receive bounds its memory, and collectives still come through.
///
/// **Timeouts** are those of the handle ([`with_timeout`](Self::with_timeout), which takes `Duration::MAX`
/// for a server that waits for ever), and close nothing ([`Error::MessageTimeout`]).
///
/// - A receive has taken no message then: one that has begun to come is received to its end.
/// - A send is given up: its receiver gets the whole message or nothing. Where the receiver knows of it
///   already, it gets it later, over sockets and shared memory out of a copy that the sender keeps until
///   then. Over UCX it may be reading the sender's memory: the send returns when the receiver has turned its
///   transport and let go.
///
/// What goes on so gets the group's timeout for that. If the other rank does not go on for so long, the group
/// is closed.
///
/// **Errors** of a closed group are those of collectives: the loss of any member closes it.
impl Group {
    /// Sends `data` to rank `to`. Blocks until the memory may be used again.
    ///
    /// ```
    /// let group = brevity_collectives::Group::solo();
    /// group.send(&[1.0f32, 2.0], 0, 7)?;
    /// let mut place = [0.0f32; 4];
    /// let message = group.recv(&mut place, None, None)?;
    /// assert_eq!((message.source, message.tag, message.bytes, &place[..2]), (0, 7, 8, &[1.0, 2.0][..]));
    /// # Ok::<(), brevity_collectives::Error>(())
    /// ```
    ///
    /// # Errors
    /// [`Error::Tag`], [`Error::NoSuchRank`] and [`Error::Forked`]: nothing was sent.
    /// [`Error::MessageTimeout`]. Those of a closed group: [`Error::PeerLost`], [`Error::Aborted`],
    /// [`Error::Differs`].
    pub fn send<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result<()> {
        self.check_message(Pick { source: Some(to), tag: Some(tag) })?;
        self.run_mail(async |mail| mail.send(to, tag, bytemuck::cast_slice(data)).await)
    }

    /// Sends a copy of `data` to rank `to`, without waiting. Returns false, and sends nothing, if this rank
    /// has no credit: if `to` has not yet taken what was sent so before, or another thread is sending so now.
    ///
    /// So at most one such message to each rank waits in this rank's memory. It moves on when the engine is
    /// turned, as by later calls, and is lost if the group is dropped before.
    ///
    /// # Errors
    /// As for [`send`](Self::send); also the error of an earlier message to `to`.
    pub fn try_send<T: Element>(&self, data: &[T], to: u32, tag: u32) -> Result<bool> {
        self.check_message(Pick { source: Some(to), tag: Some(tag) })?;
        let Some(turn) = Turn::take(&self.context.tried, to) else { return Ok(false) };
        if let Some(before) = turn.before {
            // Turns the engine, which may run other calls of this group: nothing is locked.
            if !before.test() {
                turn.place.leave(before);
                return Ok(false);
            }
            before.wait().1?;
        }
        let bytes: Vec<u8> = bytemuck::cast_slice(data).to_vec();
        let sending = self.with_timeout(Duration::MAX).start_send(bytes, to, tag);
        if sending.has_ended() {
            return sending.wait().1.map(|()| true);
        }
        turn.place.leave(sending);
        Ok(true)
    }

    /// Receives a message of at most `data.len()` elements into the beginning of `data`. The elements behind
    /// it are unspecified.
    ///
    /// # Errors
    /// [`Error::MessageTooLong`] and [`Error::MessageElements`]: the message was taken and is lost, and the
    /// group stays open. [`Error::MessageTimeout`]: no message was taken. Otherwise as for
    /// [`send`](Self::send). The elements are unspecified then.
    pub fn recv<T: Element>(
        &self,
        data: &mut [T],
        from: impl Into<Option<u32>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Message> {
        let pick = self.checked_pick(from, tag)?;
        self.run_mail(async move |mail| mail.recv(pick, Place::Fixed(data)).await)
    }

    /// Receives a message of any length up to `limit` elements; `data` gets its length, and keeps its memory.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv); [`Error::Transport`] without memory for the message, which stays.
    pub fn recv_vec<T: Element>(
        &self,
        data: &mut Vec<T>,
        limit: usize,
        from: impl Into<Option<u32>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Message> {
        let pick = self.checked_pick(from, tag)?;
        self.run_mail(async move |mail| mail.recv(pick, Place::Growing(data, limit)).await)
    }

    /// Sends one message and receives another at the same time, as ranks do that exchange data.
    ///
    /// # Errors
    /// As for [`send`](Self::send) and [`recv`](Self::recv); the other one may have been done.
    pub fn send_recv<T: Element>(
        &self,
        (data, to, tag): (&[T], u32, u32),
        (place, from, place_tag): (&mut [T], Option<u32>, Option<u32>),
    ) -> Result<Message> {
        self.check_message(Pick { source: Some(to), tag: Some(tag) })?;
        let pick = self.checked_pick(from, place_tag)?;
        self.run_mail(async move |mail| {
            let sending = mail.send(to, tag, bytemuck::cast_slice(data));
            let (sent, received) = join(sending, mail.recv(pick, Place::Fixed(place))).await;
            sent.and(received)
        })
    }

    /// Waits for a message and leaves it where it is. To receive it, name its source and tag: no other rank
    /// or tag comes before it then. Another thread may take it, and over UCX a sender that gives it up takes
    /// it back.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv).
    pub fn probe(&self, from: impl Into<Option<u32>>, tag: impl Into<Option<u32>>) -> Result<Message> {
        let pick = self.checked_pick(from, tag)?;
        self.run_mail(async move |mail| mail.probe(pick).await)
    }

    /// Like [`probe`](Self::probe), but does not wait. Turns the transport once.
    ///
    /// # Errors
    /// As for [`recv`](Self::recv), except for timeouts.
    pub fn try_probe(
        &self,
        from: impl Into<Option<u32>>,
        tag: impl Into<Option<u32>>,
    ) -> Result<Option<Message>> {
        let pick = self.checked_pick(from, tag)?;
        self.progress();
        let ranks = &self.context.ranks;
        ranks.find(self.port(), pick).map_err(|fault| ranks.error(fault))
    }

    /// Starts a [`send`](Self::send); the handle returns `data`.
    pub fn start_send<T, B>(&self, data: B, to: u32, tag: u32) -> Handle<(B, Result<()>)>
    where
        T: Element,
        B: AsRef<[T]> + Send + 'static,
    {
        match self.check_message(Pick { source: Some(to), tag: Some(tag) }) {
            Ok(()) => self.start_mail(data, move |mail, data| {
                Box::pin(async move { mail.send(to, tag, bytemuck::cast_slice((*data).as_ref())).await })
            }),
            Err(error) => self.ended((data, Err(error))),
        }
    }

    /// Starts a [`recv`](Self::recv); the handle returns `data`. A message that has begun to come when the
    /// handle is dropped is lost; one that is [probed](Self::start_probe) is not.
    ///
    /// Of several receives of one source and tag that are posted, the one that was started first gets a
    /// message.
    pub fn start_recv<T, B>(
        &self,
        data: B,
        from: impl Into<Option<u32>>,
        tag: impl Into<Option<u32>>,
    ) -> Handle<(B, Result<Message>)>
    where
        T: Element,
        B: AsMut<[T]> + Send + 'static,
    {
        match self.checked_pick(from, tag) {
            Ok(pick) => self
                .start_mail(data, move |mail, data| {
                    Box::pin(async move { mail.recv(pick, Place::Fixed(data.as_mut())).await })
                })
                .of_receive(),
            Err(error) => self.ended((data, Err(error))),
        }
    }

    /// Starts a [`recv_vec`](Self::recv_vec); the handle returns `data`.
    pub fn start_recv_vec<T: Element>(
        &self,
        data: Vec<T>,
        limit: usize,
        from: impl Into<Option<u32>>,
        tag: impl Into<Option<u32>>,
    ) -> Handle<(Vec<T>, Result<Message>)> {
        match self.checked_pick(from, tag) {
            Ok(pick) => self
                .start_mail(data, move |mail, data| {
                    Box::pin(async move { mail.recv(pick, Place::Growing(data, limit)).await })
                })
                .of_receive(),
            Err(error) => self.ended((data, Err(error))),
        }
    }

    /// Starts a [`probe`](Self::probe).
    pub fn start_probe(
        &self,
        from: impl Into<Option<u32>>,
        tag: impl Into<Option<u32>>,
    ) -> Handle<((), Result<Message>)> {
        match self.checked_pick(from, tag) {
            Ok(pick) => self
                .start_mail((), move |mail, ()| Box::pin(async move { mail.probe(pick).await }))
                .of_receive(),
            Err(error) => self.ended(((), Err(error))),
        }
    }

    fn checked_pick(&self, from: impl Into<Option<u32>>, tag: impl Into<Option<u32>>) -> Result<Pick> {
        let pick = Pick { source: from.into(), tag: tag.into() };
        self.check_message(pick).map(|()| pick)
    }

    fn check_message(&self, Pick { source, tag }: Pick) -> Result<()> {
        self.check_process()?;
        let world_size = self.world_size();
        if let Some(tag) = tag.filter(|tag| *tag > Tag::MAX_USER) {
            return Err(Error::Tag { tag });
        }
        match source.filter(|rank| *rank >= world_size) {
            Some(rank) => Err(Error::NoSuchRank { rank, world_size }),
            None => Ok(()),
        }
    }

    /// The timeout of a message, and the time for one that has begun to come by then.
    fn message_time(&self) -> (Duration, Duration) {
        (self.timeout(), self.context.timeout())
    }

    fn run_mail<'env, R>(&self, body: impl AsyncFnOnce(Mail<'_, 'env>) -> R) -> R {
        let (ranks, status) = (&*self.context.ranks, &*self.context.status);
        self.engine().run_messages(status, self.message_time(), async |comm: &Comm<'env>| {
            body(Mail { comm, ranks }).await
        })
    }

    pub(super) fn start_mail<B, R, F>(&self, buffers: B, body: F) -> Handle<(B, R)>
    where
        B: Send + 'static,
        R: Send + 'static,
        F: for<'env, 'a> FnOnce(Mail<'a, 'env>, &'env mut B) -> CallFuture<'a, R> + Send + 'static,
    {
        let ranks = Arc::clone(&self.context.ranks);
        let around = (Arc::clone(&self.context.status), Some(Arc::clone(&ranks) as _));
        let (timeout, grace) = self.message_time();
        self.engine().spawn_in(around, (timeout, Some(grace)), buffers, move |comm, buffers| {
            Box::pin(async move { body(Mail { comm, ranks: &ranks }, buffers).await })
        })
    }
}
