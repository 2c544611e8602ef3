//! The decision of those who are left of a group to go to another world that they have joined: all of them,
//! or nobody.
//!
//! An agreement among the members of the old group, in messages of the new world. It has one value, to go. A
//! candidate proposes it if any member that has answered knows that all have joined, or has accepted it for
//! an earlier candidate; otherwise the candidate gives up, and they stay.
//!
//! A quorum is one of the old group, so those who go and those who stay never both go on. A member that has
//! accepted the value [has gone](crate::world::World::has_gone), also if it does not learn whether it was
//! decided: it takes no part in shrinking a group of the old world.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use super::agreement::{Agreement, Outcome, Promises, Quorum};
use super::message::Offer;
use crate::context::Ranks;
use crate::difference::CONTROL;
use crate::engine::Handle;
use crate::error::{Error, Result};
use crate::group::Group;

/// Stands for the new world: no group has this number.
const GOING: Offer = (CONTROL, 0);

/// A decision that goes on.
type Deciding = Handle<(((), Agreement), Result<()>)>;

impl Group {
    /// Starts the decision of the members of `old` to go to this group, in which they have the numbers
    /// `left`, in the order of that group. Those that have joined this group start it; `knows` tells whether
    /// this rank knows that these are all.
    pub(crate) fn start_decision(&self, old: &Self, left: &[u32], knows: bool) -> Deciding {
        let world = &self.context.world;
        let members = left.iter().map(|rank| self.context.ranks.member(*rank)).collect();
        let ranks = Arc::new(Ranks::beside(world, members, old.rank()));
        let (place, rule) = ((ranks.own, ranks.size()), (Quorum::Majority, old.timeout()));
        let offers = if knows { vec![GOING] } else { Vec::new() };
        let agreement = Agreement::new(place, rule, offers, Promises::default(), world.port().now());
        self.start_serving(ranks, (), agreement.taking_any())
    }

    /// Whether the members of this group have decided to go.
    ///
    /// # Errors
    /// [`Error::HasGrown`], if they may have, and this rank can't learn it. This group is closed then.
    pub(crate) fn has_decided(&self, agreement: &Agreement) -> Result<bool> {
        let is_decided = matches!(agreement.outcome(), Some(Outcome::Decided(_)));
        if !is_decided && !agreement.has_accepted() {
            return Ok(false);
        }
        self.context.world.has_gone.store(true, Ordering::Relaxed);
        if !is_decided {
            // Those who stay notice that this rank has not.
            self.abort();
            return Err(Error::HasGrown);
        }
        Ok(true)
    }
}
