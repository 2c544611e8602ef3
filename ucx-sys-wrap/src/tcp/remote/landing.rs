//! Payload that arrives: into a region, or into the parts of a get.

use std::io::IoSliceMut;

use super::Accesses;
use super::requests::{Kind, Operation};
use crate::buffer::RegionMemory;
use crate::one_sided::frame::{Outcome, RemoteFrame};
use crate::tcp::matching::Places;
use crate::tcp::wire::Wire;
use crate::transport::{RecvParts, Statistics};

/// Where payload goes.
pub(super) enum Landing {
    /// Into a region, unless the request is refused.
    Put { number: u32, region: u64, memory: Option<(RegionMemory, usize)>, outcome: Outcome },
    /// Into the parts of a get.
    Got(usize),
}

impl Accesses {
    /// Reads payload straight to where it goes, at most `limit` bytes; nothing for payload that goes nowhere.
    pub(in crate::tcp) fn read(
        &mut self,
        wire: &mut Wire,
        received: usize,
        limit: usize,
        statistics: &mut Statistics,
    ) -> Option<rustix::io::Result<usize>> {
        match self.landing.as_mut()? {
            Landing::Put { memory, .. } => {
                let (memory, offset) = memory.as_ref()?;
                memory.with(offset + received, limit, |place| {
                    wire.read(&mut [IoSliceMut::new(place)], statistics)
                })
            }
            Landing::Got(number) => {
                let Kind::Get { parts, received, .. } = &mut self.operations.get_mut(*number)?.kind else {
                    return None;
                };
                let mut places = places(parts, *received, limit);
                if places.is_empty() {
                    return None;
                }
                let got = wire.read(&mut places, statistics);
                drop(places);
                *received += *got.as_ref().unwrap_or(&0) as u64;
                Some(got)
            }
        }
    }

    /// Copies payload that was read before it was known where it goes.
    pub(in crate::tcp) fn deposit(&mut self, received: usize, bytes: &[u8], statistics: &mut Statistics) {
        let mut count = |bytes: usize| {
            statistics.copies += u64::from(bytes > 0);
            statistics.bytes_copied += bytes as u64;
        };
        match &mut self.landing {
            Some(Landing::Put { memory: Some((memory, offset)), .. }) => {
                // A copy: these bytes came with the header.
                memory.write(*offset + received, bytes);
                count(bytes.len());
            }
            Some(Landing::Got(number)) => {
                let Some(Operation { kind: Kind::Get { parts, received, .. }, .. }) =
                    self.operations.get_mut(*number)
                else {
                    return;
                };
                let mut rest = bytes;
                for mut place in places(parts, *received, bytes.len()) {
                    let (now, later) = rest.split_at(place.len());
                    // A copy: as above.
                    place.copy_from_slice(now);
                    count(now.len());
                    rest = later;
                }
                *received += bytes.len() as u64;
            }
            _ => {}
        }
    }

    /// The payload is complete.
    pub(in crate::tcp) fn landed(&mut self) {
        match self.landing.take() {
            Some(Landing::Put { number, outcome, .. }) => {
                self.answers.push_back(RemoteFrame::Ended(number, outcome))
            }
            Some(Landing::Got(number)) => {
                if let Some(Operation { kind: Kind::Get { received, wanted, .. }, .. }) =
                    self.operations.get(number)
                    && received == wanted
                {
                    self.answered(number);
                    self.end(number, Ok(()));
                    self.forget(number);
                }
            }
            None => {}
        }
    }
}

/// Where the bytes of a get go that follow the first `received`, at most `limit` of them.
fn places(parts: &mut RecvParts, received: u64, limit: usize) -> Places<'_> {
    let mut places = Places::new();
    let (mut skip, mut room) = (received as usize, limit);
    for part in parts.iter_mut() {
        let start = skip.min(part.len());
        let end = start + (part.len() - start).min(room);
        skip -= start;
        room -= end - start;
        if end > start {
            places.push(IoSliceMut::new(&mut part.bytes_mut()[start..end]));
        }
    }
    places
}
