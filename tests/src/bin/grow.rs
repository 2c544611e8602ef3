//! One rank of a job that takes back ranks that are killed and started again: `grow CYCLES VICTIM...`.
//!
//! It makes steps of an exchange until a rank is lost, goes on without it, makes a step, takes it back, and
//! says so (`on-1`, `on-2`), so often. The victims kill themselves in turn, each when the test says so
//! (`die-1`, `die-2`): within a step, or before it in each third cycle. One that has come back gets model and
//! state from the others. What each process has handed in, delivered and kept is in its `life-INCARNATION`.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::thread::{self, sleep};
use std::time::{Duration, Instant};

use brevity::collectives::Error as Collective;
use brevity::{Error, GradientExchange, Group, ReduceOp, Result, launch};
use brevity_tests::cycles::{
    Step, Tensors, add, begun, delivered, ended, exchange, gradients, residuals, sums, zeros,
};
use brevity_tests::faults::{Log, PATIENCE, now};
use rustix::process::{Signal, getpid, kill_process};

/// The pause between two steps.
const PAUSE: Duration = Duration::from_millis(1);

/// Steps after the last return.
const LAST_STEPS: u32 = 3;

fn main() -> ExitCode {
    launch::die_with_parent();
    let words: Vec<u32> = std::env::args().skip(1).filter_map(|word| word.parse().ok()).collect();
    let Some((cycles, victims)) = words.split_first() else { panic!("no number of cycles") };
    match Member::join().and_then(|member| member.live(*cycles, victims)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}

struct Member {
    log: Log,
    /// The name of what this process notes.
    notes: String,
    /// The number of this rank when the job began.
    own: u32,
    group: Group,
    exchange: GradientExchange,
    /// How many groups the job had before.
    groups: u32,
    /// The number of the next step.
    step: u32,
    /// How often lost ranks have come back.
    cycle: u32,
    /// The sum of all that was delivered.
    model: Tensors,
    handed_in: Tensors,
}

impl Member {
    fn join() -> Result<Self> {
        let incarnation = std::env::var("BREVITY_INCARNATION").unwrap_or_else(|_| "0".into());
        let group = Group::from_env()?;
        let own = group.first_ranks()[group.rank() as usize].0;
        let is_current = !group.returned().contains(&group.rank());
        let mut member = Self {
            log: Log::of(own),
            notes: format!("life-{incarnation}"),
            own,
            exchange: exchange(&group)?,
            group,
            groups: 0,
            step: 0,
            cycle: 0,
            model: zeros(),
            handed_in: zeros(),
        };
        member.share(is_current)?;
        Ok(member)
    }

    fn live(mut self, cycles: u32, victims: &[u32]) -> Result<()> {
        let whole = self.group.first_world_size();
        self.log.went_on(self.cycle, whole, Instant::now());
        let mut last = PAUSE;
        while self.cycle < cycles {
            let (start, next) = (Instant::now(), self.cycle + 1);
            let dies = victims[self.cycle as usize % victims.len()] == self.own;
            let told = format!("die-{next}");
            loop {
                if dies && self.log.is_told(&told) {
                    die(next % 3 != 0, last);
                }
                let step = Instant::now();
                if self.take_step()? {
                    last = step.elapsed();
                    sleep(PAUSE);
                } else {
                    break;
                }
                assert!(start.elapsed() < PATIENCE, "nothing happens");
            }
            let start = Instant::now();
            while !self.go_on()? {}
            assert_eq!(self.group.world_size(), whole, "all are back");
            self.log.went_on(self.cycle, whole, start);
        }
        self.log.await_go(PATIENCE);
        for _ in 0..LAST_STEPS {
            assert!(self.take_step()?, "nobody dies any more");
        }
        let line = ended(&self.handed_in, &residuals(&self.exchange), &self.model);
        self.log.note(&self.notes, &line);
        self.group.barrier()?;
        self.log.finish();
        Ok(())
    }

    /// Makes a step. False if a rank is lost.
    fn take_step(&mut self) -> Result<bool> {
        let step = Step { group: self.groups, number: self.step, size: self.group.world_size() };
        self.log.note(&self.notes, &begun(step, &self.handed_in, &residuals(&self.exchange)));
        let mut averages = gradients(self.own, self.step);
        add(&mut self.handed_in, &averages);
        self.step += 1;
        let averaged = self.exchange.average(&mut averages);
        goes_well(averaged.map(|()| self.deliver(step, &averages)))
    }

    fn deliver(&mut self, step: Step, averages: &Tensors) {
        self.log.note(&self.notes, &delivered(step, averages));
        add(&mut self.model, &sums(averages, step.size));
    }

    /// Goes on without the lost ranks, and takes them back. False if one more is lost meanwhile.
    fn go_on(&mut self) -> Result<bool> {
        let size = self.exchange.group().world_size();
        self.group = self.group.shrink()?;
        let mut averages = zeros();
        match self.exchange.go_on(&self.group, &mut averages) {
            Ok(true) => {
                let step = Step { group: self.groups, number: self.step - 1, size };
                self.deliver(step, &averages);
            }
            Ok(false) => {}
            failed => return goes_well(failed),
        }
        if !goes_well(self.agree())? || !self.take_step()? {
            return Ok(false);
        }
        let back = self.group.grow(PATIENCE).map_err(Error::from);
        let Ok(grown) = &back else { return goes_well(back) };
        if !grown.is_same(&self.group) {
            self.cycle += 1;
        }
        self.group = grown.clone();
        goes_well(self.share(true))
    }

    /// Gives those that have come back the state of one that has it.
    fn share(&mut self, is_current: bool) -> Result<()> {
        let mut are_current = vec![0_u32; self.group.world_size() as usize];
        self.group.all_gather(&[u32::from(is_current)], &mut are_current)?;
        if are_current.contains(&0) {
            let from = are_current.iter().position(|is_current| *is_current == 1);
            let from = from.unwrap_or_else(|| panic!("nobody has the model"));
            self.exchange.share_state(&self.group, from as u32, &mut self.model)?;
        }
        self.agree()
    }

    /// Agrees on the next step, on the number of the group, and on that of returns.
    fn agree(&mut self) -> Result<()> {
        let mut numbers = [self.step, self.groups + 1, self.cycle];
        self.group.all_reduce(&mut numbers, ReduceOp::Max)?;
        [self.step, self.groups, self.cycle] = numbers;
        Ok(())
    }
}

/// Whether a call has succeeded, if not for a loss.
fn goes_well<T>(outcome: Result<T>) -> Result<bool> {
    match outcome {
        Ok(_) => Ok(true),
        Err(Error::Collective(
            Collective::PeerLost { .. } | Collective::Aborted { .. } | Collective::Timeout { .. },
        )) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Kills this process, at once or at some moment of so long a step.
fn die(is_within: bool, step: Duration) {
    let kill = || {
        let _ = kill_process(getpid(), Signal::KILL);
    };
    if is_within {
        let moment = step.mul_f64(f64::from(now().subsec_nanos() % 1000) / 1000.0);
        thread::spawn(move || {
            sleep(moment);
            kill();
        });
    } else {
        kill();
    }
}
