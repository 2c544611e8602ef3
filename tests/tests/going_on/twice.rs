//! A second death while the others go on after the first one.

use std::ops::RangeInclusive;

use brevity::transport::Rank;
use brevity::transport::sim::Fault;

use super::{Diary, MANY_SEEDS, Plan, SEEDS, Way, victim_of};

/// The first deaths of each rank, if not all.
const FIRST_DEATHS: usize = 1;

impl Plan {
    /// Kills another rank at each message with which the others have gone on after the first death. Returns
    /// how many times that was, and how often some had gone on and others had to do so once more.
    fn kill_another(self, first: Fault, once: &[Diary]) -> (u32, u32) {
        let (mut deaths, mut parted) = (0, 0);
        for rank in (0..self.world_size).filter(|rank| *rank != victim_of(&first)) {
            let Some((sent, _)) = once[rank as usize].going_on.first() else { continue };
            for messages in sent.start + 1..=sent.end {
                let diaries = self.kill(&[first, Fault::KillAfter { rank: Rank(rank), messages }]);
                let mut attempts = diaries.iter().filter_map(|diary| diary.going_on.first());
                deaths += 1;
                let has_parted = attempts.clone().any(|(_, is_well)| *is_well);
                parted += u32::from(has_parted && attempts.any(|(_, is_well)| !is_well));
            }
        }
        (deaths, parted)
    }
}

#[test]
fn after_another_death_while_they_go_on_all_have_delivered_the_same_steps() {
    kill_twice(1..=SEEDS, FIRST_DEATHS);
}

#[test]
#[ignore = "takes minutes: see ci/exhaustive.sh"]
fn exhaustive_second_deaths_while_the_others_go_on() {
    kill_twice(1..=MANY_SEEDS, usize::MAX);
}

/// After deaths that leave ranks a step apart: the first ones of each rank, so many.
fn kill_twice(seeds: RangeInclusive<u64>, firsts: usize) {
    let (mut all, mut parted) = (0, 0);
    for (way, seed) in seeds.flat_map(|seed| [Way::AtOnce, Way::TensorByTensor].map(|way| (way, seed))) {
        let plan = Plan { world_size: 4, way, seed, any: true };
        let mut left = [firsts; 4];
        for first in plan.deaths() {
            let left = &mut left[victim_of(&first) as usize];
            if *left == 0 {
                continue;
            }
            let once = plan.kill(&[first]);
            if once.iter().any(|diary| diary.caught_up > 0) {
                *left -= 1;
                let (deaths, apart) = plan.kill_another(first, &once);
                (all, parted) = (all + deaths, parted + apart);
            }
        }
    }
    println!("{all} second deaths; after {parted} of them only some had gone on");
    assert!(parted > 0, "no second death parts the others");
}
