//! What the peer wants of this rank's memory.

use super::landing::Landing;
use super::{Accesses, MAX_REQUESTS, PIECE_BYTES};
use crate::memory::RegionMemory;
use crate::one_sided::frame::{Outcome, Place, RemoteFrame};
use crate::tcp::outgoing::Outgoing;
use crate::tcp::sizes::HEADER_BYTES;
use crate::tcp::wire::Wire;
use crate::transport::count_copy;
use crate::{Error, Result, Statistics};

/// A get of the peer.
pub(super) struct Served {
    pub(super) number: u32,
    pub(super) region: u64,
    pub(super) memory: RegionMemory,
    pub(super) offset: usize,
    pub(super) rest: usize,
}

impl Accesses {
    /// Sends the next bytes that the peer wants.
    pub(super) fn serve_piece(
        &mut self,
        outgoing: &mut Outgoing,
        wire: &mut Wire,
        statistics: &mut Statistics,
    ) -> usize {
        let Some(served) = self.served.front_mut() else { return 0 };
        let length = served.rest.min(PIECE_BYTES);
        let mut bytes = vec![0; length];
        // A copy: the region's memory may change while these bytes wait for the socket.
        served.memory.read(served.offset, &mut bytes);
        count_copy(statistics, length);
        served.offset += length;
        served.rest -= length;
        let frame = RemoteFrame::Bytes(served.number, length);
        if served.rest == 0 {
            self.served.pop_front();
        }
        outgoing.post_one_sided_copy(wire, frame.encode(self.own), bytes, statistics);
        HEADER_BYTES + length
    }

    /// The memory that a request of the peer is for.
    pub(super) fn find(
        &self,
        place: &Place,
        length: u64,
    ) -> Result<std::result::Result<(RegionMemory, usize), Outcome>> {
        if self.answers.len() + self.served.len() > MAX_REQUESTS {
            let what = format!("more than {MAX_REQUESTS} puts and gets without reading the answers");
            return Err(Error::Protocol { rank: self.peer, what });
        }
        Ok(self.regions.lock().look_up(self.own, place, length))
    }

    /// Touches a region no more; who asked for it is told.
    pub(in crate::tcp) fn conceal(&mut self, concealed: u64) {
        if let Some(Landing::Put { region, memory, outcome, .. }) = &mut self.landing
            && *region == concealed
        {
            (*memory, *outcome) = (None, Outcome::NoSuchRegion);
        }
        self.served.retain(|served| {
            let is_there = served.region != concealed;
            if !is_there {
                self.answers.push_back(RemoteFrame::Ended(served.number, Outcome::NoSuchRegion));
            }
            is_there
        });
    }
}
