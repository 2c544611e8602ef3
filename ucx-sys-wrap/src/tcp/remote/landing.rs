//! Payload that arrives: into a region, or into the parts of a get.

use std::io::IoSliceMut;

use super::Accesses;
use crate::memory::RegionMemory;
use crate::one_sided::frame::{Outcome, RemoteFrame};
use crate::one_sided::requests::Target;
use crate::tcp::wire::Wire;
use crate::transport::{Statistics, count_copy};

/// Where payload goes.
pub(super) enum Landing {
    /// Into a region, unless the request is refused.
    Put { number: u32, region: u64, memory: Option<(RegionMemory, usize)>, outcome: Outcome },
    /// Into the parts of a get.
    Got(Target),
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
            Landing::Got(target) => {
                let place = self.requests.place(target)?.get_mut(received..received + limit)?;
                Some(wire.read(&mut [IoSliceMut::new(place)], statistics))
            }
        }
    }

    /// Copies payload that was read before it was known where it goes.
    pub(in crate::tcp) fn deposit(&mut self, received: usize, bytes: &[u8], statistics: &mut Statistics) {
        let is_wanted = match &mut self.landing {
            Some(Landing::Put { memory: Some((memory, offset)), .. }) => {
                // A copy: these bytes came with the header.
                memory.write(*offset + received, bytes);
                true
            }
            Some(Landing::Got(target)) => {
                let place = self.requests.place(target);
                let place = place.and_then(|place| place.get_mut(received..received + bytes.len()));
                // A copy: as above.
                place.map(|place| place.copy_from_slice(bytes)).is_some()
            }
            _ => false,
        };
        if is_wanted {
            count_copy(statistics, bytes.len());
        }
    }

    /// The payload is complete, or what is to come of it goes nowhere.
    pub(in crate::tcp) fn landed(&mut self) {
        match self.landing.take() {
            Some(Landing::Put { number, outcome, .. }) => {
                self.answers.push_back(RemoteFrame::Ended(number, outcome))
            }
            Some(Landing::Got(target)) => self.requests.release(target.number, false),
            None => {}
        }
    }
}
