//! Rank 0 of a rendezvous: waits for the others and passes their blobs around.

use std::time::Duration;

use super::channel::{Channel, Malformed, farewell, wait_for};
use super::deadline::Deadline;
use super::lobby::Lobby;
use super::proof::{Opening, Party};
use super::wire::{Frame, Subject, Verdict};
use crate::{Error, Result};

/// How long a verdict may take to reach everybody.
const FAREWELL_PATIENCE: Duration = Duration::from_secs(2);

/// Rank 0 and its connections to all other ranks.
pub(super) struct Root {
    party: Party,
    master: String,
    lobby: Lobby,
    /// By rank; none for rank 0.
    members: Vec<Option<Channel>>,
    timeout: Duration,
}

impl Root {
    pub(super) fn new(party: Party, master: String, lobby: Lobby, timeout: Duration) -> Self {
        let members = (0..party.world_size).map(|_| None).collect();
        Self { party, master, lobby, members, timeout }
    }

    /// The address that the others reach.
    pub(super) fn address(&self) -> std::io::Result<std::net::SocketAddr> {
        self.lobby.listener().local_addr()
    }

    /// Waits until all ranks have joined.
    pub(super) fn join(&mut self) -> Result<()> {
        let mut deadline = Deadline::after(self.timeout);
        loop {
            for (opening, channel) in self.lobby.turn()? {
                self.admit(opening, channel)?;
            }
            self.take_frames(|_, frame| match frame {
                Frame::Patience(remaining) => {
                    deadline = deadline.no_later_than(remaining);
                    true
                }
                _ => false,
            })?;
            let missing: Vec<u32> = self.others().filter(|&rank| self.members[rank as usize].is_none()).collect();
            if missing.is_empty() {
                break;
            }
            if deadline.passed() {
                return Err(self.fail(Verdict::Missing { ranks: missing, waited: deadline.given() }));
            }
            self.sleep(deadline.remaining());
        }
        self.tell(&Frame::Joined);
        Ok(())
    }

    /// Gathers a blob of every rank and gives all of them to all.
    pub(super) fn exchange(&mut self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut deadline = Deadline::after(self.timeout);
        let mut blobs: Vec<Option<Vec<u8>>> = vec![None; self.members.len()];
        blobs[0] = Some(mine.to_vec());
        while blobs.contains(&None) {
            self.take_frames(|rank, frame| match frame {
                Frame::Blob(remaining, blob) => {
                    deadline = deadline.no_later_than(remaining);
                    blobs[rank as usize].replace(blob).is_none()
                }
                Frame::Patience(_) => true,
                _ => false,
            })?;
            let missing: Vec<u32> = self.others().filter(|&rank| blobs[rank as usize].is_none()).collect();
            if !missing.is_empty() && deadline.passed() {
                return Err(self.fail(Verdict::Missing { ranks: missing, waited: deadline.given() }));
            }
            if !missing.is_empty() {
                self.sleep(deadline.remaining());
            }
        }
        let blobs: Vec<Vec<u8>> = blobs.into_iter().flatten().collect();
        for blob in &blobs {
            self.tell(&Frame::Gathered(blob.clone()));
        }
        self.flush(deadline)?;
        Ok(blobs)
    }

    /// Takes in a caller that holds the key, if it is a rank of this job that has not come yet.
    fn admit(&mut self, opening: Opening, channel: Channel) -> Result<()> {
        let (rank, world_size) = (opening.rank, self.party.world_size);
        let differ =
            |subject, found: String, expected: String| Verdict::Disagreement { subject, rank, found, expected };
        if opening.wire_version != self.party.wire_version {
            let (found, expected) = (opening.wire_version.to_string(), self.party.wire_version.to_string());
            let verdict = differ(Subject::WireVersion, found, expected);
            return Err(self.fail_with(channel, verdict));
        }
        if opening.job != self.party.job {
            // A rank of another job has lost its way: that is its own trouble.
            let verdict = differ(Subject::Job, format!("{:?}", opening.job), format!("{:?}", self.party.job));
            turn_away(channel, verdict);
            return Ok(());
        }
        if opening.world_size != world_size {
            let verdict = differ(Subject::WorldSize, opening.world_size.to_string(), world_size.to_string());
            return Err(self.fail_with(channel, verdict));
        }
        match self.members.get_mut(rank as usize) {
            Some(place @ None) if rank != 0 => *place = Some(channel),
            _ => turn_away(channel, differ(Subject::Processes, "2".into(), "1".into())),
        }
        Ok(())
    }

    /// Reads what members have sent; `take` says whether a frame was expected.
    fn take_frames(&mut self, mut take: impl FnMut(u32, Frame) -> bool) -> Result<()> {
        let max_body = Frame::max_body_bytes(self.party.world_size);
        let mut lost = None;
        for (rank, member) in self.members.iter_mut().enumerate() {
            let Some(channel) = member else { continue };
            channel.pump_frames(max_body);
            loop {
                match channel.take_frame(max_body) {
                    Ok(Some(frame)) if take(rank as u32, frame.clone()) => {}
                    Ok(None) if !channel.ended() => break,
                    Ok(_) | Err(Malformed) => {
                        lost = lost.or(Some(rank as u32));
                        break;
                    }
                }
            }
        }
        lost.map_or(Ok(()), |rank| Err(self.fail(Verdict::Lost { rank })))
    }

    fn others(&self) -> std::ops::Range<u32> {
        1..self.party.world_size
    }

    fn sleep(&mut self, longest: Duration) {
        let (listener, callers) = self.lobby.parts();
        let channels = callers.chain(self.members.iter_mut().flatten());
        wait_for(Some(listener), channels, longest.min(Duration::from_secs(1)));
    }

    fn tell(&mut self, frame: &Frame) {
        let bytes = frame.encode();
        for channel in self.members.iter_mut().flatten() {
            channel.queue(bytes.clone());
            channel.pump(0);
        }
    }

    /// Writes what is queued.
    fn flush(&mut self, deadline: Deadline) -> Result<()> {
        while let Some(rank) = self.members.iter().position(|m| m.as_ref().is_some_and(|channel| !channel.flushed())) {
            if deadline.passed() || self.members[rank].as_ref().is_some_and(Channel::ended) {
                return Err(self.fail(Verdict::Lost { rank: rank as u32 }));
            }
            let waiting = self.members.iter_mut().flatten().filter(|channel| !channel.flushed());
            wait_for(None, waiting, deadline.remaining());
            self.members.iter_mut().flatten().for_each(|channel| channel.pump(0));
        }
        Ok(())
    }

    /// Tells everybody why the job has failed.
    fn fail(&mut self, verdict: Verdict) -> Error {
        self.tell(&Frame::Verdict(verdict.clone()));
        farewell(self.members.iter_mut().filter_map(Option::take).collect(), FAREWELL_PATIENCE);
        verdict.into_error(self.master.clone())
    }

    /// Tells everybody why the job has failed, the caller that is the reason and those that come a little later too.
    fn fail_with(&mut self, mut channel: Channel, verdict: Verdict) -> Error {
        let bytes = Frame::Verdict(verdict.clone()).encode();
        channel.queue(bytes.clone());
        self.members.push(Some(channel));
        let deadline = Deadline::after(FAREWELL_PATIENCE);
        while self.members.iter().flatten().count() < self.others().len() && !deadline.passed() {
            for (_, mut late) in self.lobby.turn().unwrap_or_default() {
                late.queue(bytes.clone());
                self.members.push(Some(late));
            }
            let (listener, callers) = self.lobby.parts();
            wait_for(Some(listener), callers, deadline.remaining());
        }
        self.fail(verdict)
    }
}

/// Tells one caller why it can't join.
fn turn_away(mut channel: Channel, verdict: Verdict) {
    channel.queue(Frame::Verdict(verdict).encode());
    channel.pump(0);
    // A short text into an empty connection is with the system at once; what it does not take is not worth a wait.
    channel.finish_sending();
}
