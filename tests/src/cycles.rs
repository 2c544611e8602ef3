//! Steps of an exchange in a job whose ranks are killed and come back: what each process writes of them, and
//! a serial reference that it is compared with.
//!
//! A process writes a line before each step (`begun`: what it has handed in so far, and its residuals), one
//! when it has the averages (`delivered`), and one at its end. Values are whole numbers, so sums are exact.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use brevity::compress::generator::Generator;
use brevity::{GradientExchange, Group, Policy, Result};

use crate::oracle;

/// The elements of each tensor.
const COUNT: usize = 48;

/// The entries that sparse tensors keep of them.
const KEPT: usize = 6;

const NAMES: [&str; 3] = ["dense", "top-k", "gTop-k"];

/// A vector for each tensor.
pub type Tensors = [Vec<f32>; 3];

/// Tensors of 0.
#[must_use]
pub fn zeros() -> Tensors {
    [(); 3].map(|()| vec![0.0; COUNT])
}

/// An exchange that keeps going.
///
/// # Errors
/// Those of the builder.
pub fn exchange(group: &Group) -> Result<GradientExchange> {
    let density = KEPT as f64 / COUNT as f64;
    let policies = [Policy::dense(), Policy::topk(density), Policy::gtopk(density)];
    let tensors = NAMES.into_iter().zip(policies);
    let builder = GradientExchange::builder(group).keep_going();
    tensors.fold(builder, |builder, (name, policy)| builder.tensor(name, [COUNT], policy)).build()
}

/// What has not been sent of each tensor.
#[must_use]
pub fn residuals(exchange: &GradientExchange) -> Tensors {
    NAMES.map(|name| exchange.residual(name).unwrap_or_default())
}

/// What a rank hands in: whole numbers. Equal for equal arguments.
#[must_use]
pub fn gradients(rank: u32, step: u32) -> Tensors {
    let mut generator = Generator::new(u64::from(rank) << 32 | u64::from(step));
    [(); 3].map(|()| (0..COUNT).map(|_| generator.below(41) as f32 - 20.0).collect())
}

/// Adds `more`.
pub fn add(sums: &mut Tensors, more: &Tensors) {
    for (sums, more) in sums.iter_mut().zip(more) {
        sums.iter_mut().zip(more).for_each(|(sum, more)| *sum += more);
    }
}

/// The sums of averages over so many ranks.
#[must_use]
pub fn sums(averages: &Tensors, size: u32) -> Tensors {
    averages.clone().map(|tensor| tensor.iter().map(|average| (average * size as f32).round()).collect())
}

/// A step of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Step {
    /// How many groups the job had before.
    pub group: u32,
    /// The number of the step.
    pub number: u32,
    /// The ranks of the group.
    pub size: u32,
}

/// The line of a step that begins, of a process that has handed in so much before.
#[must_use]
pub fn begun(step: Step, handed_in: &Tensors, residuals: &Tensors) -> String {
    line("begun", Some(step), &[handed_in, residuals])
}

/// The line of averages that were delivered.
#[must_use]
pub fn delivered(step: Step, averages: &Tensors) -> String {
    line("delivered", Some(step), &[averages])
}

/// The line of a process that ends, of a model that is the sum of all that was delivered.
#[must_use]
pub fn ended(handed_in: &Tensors, residuals: &Tensors, model: &Tensors) -> String {
    line("ended", None, &[handed_in, residuals, model])
}

fn line(what: &str, step: Option<Step>, values: &[&Tensors]) -> String {
    let Step { group, number, size } = step.unwrap_or(Step { group: 0, number: 0, size: 0 });
    let mut line = format!("{what} {group} {number} {size}");
    for value in values.iter().flat_map(|tensors| tensors.iter().flatten()) {
        // Writing to a string does not fail.
        let _ = write!(line, " {value}");
    }
    line.push('\n');
    line
}

/// What a process has written.
#[derive(Debug)]
pub struct Life {
    rank: u32,
    begun: BTreeMap<Step, [Tensors; 2]>,
    delivered: BTreeMap<Step, Tensors>,
    ended: Option<[Tensors; 3]>,
}

/// How many have died so.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Deaths {
    /// Within a step that no rank has delivered.
    pub within: u32,
    /// Within a step that those who are left have delivered.
    pub at_the_end: u32,
    /// After a step, and before the next one.
    pub between: u32,
}

impl Life {
    /// The lines of a process of a rank. One that was cut off by the death does not count.
    ///
    /// # Panics
    /// If it has written anything else.
    #[must_use]
    pub fn read(rank: u32, text: &str) -> Self {
        let mut life = Self { rank, begun: BTreeMap::new(), delivered: BTreeMap::new(), ended: None };
        for line in text.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n')) {
            let mut words = line.split(' ');
            let what = words.next().unwrap_or_default();
            let mut number = || words.next().and_then(|word| word.parse().ok()).unwrap_or_default();
            let step = Step { group: number(), number: number(), size: number() };
            let values: Vec<f32> = words.filter_map(|word| word.parse().ok()).collect();
            let mut vectors = values.chunks_exact(COUNT).map(<[f32]>::to_vec);
            let mut next = || [(); 3].map(|()| vectors.next().unwrap_or_default());
            match what {
                "begun" => drop(life.begun.insert(step, [next(), next()])),
                "delivered" => drop(life.delivered.insert(step, next())),
                "ended" => life.ended = Some([next(), next(), next()]),
                _ => panic!("rank {rank} has written {line:?}"),
            }
        }
        life
    }

    /// Whether it has left the group of a step alive.
    fn outlives(&self, step: Step) -> bool {
        let last = self.begun.last_key_value();
        self.ended.is_some() || last.is_some_and(|(last, _)| last.group > step.group)
    }
}

/// What a process has handed in, and what it keeps of it, if it does what the reference does.
struct Account<'a> {
    life: &'a Life,
    handed_in: Tensors,
    kept: Tensors,
    /// The living have not delivered a step that it has delivered: the averages have died with it, and what
    /// it had before is what is lost.
    is_closed: bool,
}

/// Compares all steps with the reference: averages, models and residuals of all that live, and of the dead up
/// to their deaths. All that was handed in is in the model, or is kept by the living, or was by the dead.
///
/// # Panics
/// If anything is not as it must be.
#[must_use]
pub fn check(lives: &[Life]) -> Deaths {
    let begin = |life| Account { life, handed_in: zeros(), kept: zeros(), is_closed: false };
    let mut accounts: Vec<Account<'_>> = lives.iter().map(begin).collect();
    accounts.sort_by_key(|account| account.life.rank);
    let (mut model, mut deaths) = (zeros(), Deaths::default());
    let steps: BTreeSet<Step> = lives.iter().flat_map(|life| life.begun.keys().copied()).collect();
    for step in steps {
        let has_begun =
            |account: &&mut Account<'_>| !account.is_closed && account.life.begun.contains_key(&step);
        let members: Vec<_> = accounts.iter_mut().filter(has_begun).collect();
        take_step(step, members, &mut model, &mut deaths);
    }
    let (mut handed_in, mut found) = (zeros(), model.clone());
    for Account { life, handed_in: own, kept, .. } in &accounts {
        if let Some(written) = &life.ended {
            assert_eq!(written, &[own.clone(), kept.clone(), model.clone()], "rank {} at its end", life.rank);
        }
        add(&mut handed_in, own);
        add(&mut found, kept);
    }
    assert_eq!(found, handed_in, "delivered or kept");
    deaths
}

fn take_step(step: Step, mut members: Vec<&mut Account<'_>>, model: &mut Tensors, deaths: &mut Deaths) {
    let has_delivered = |account: &&mut Account<'_>| account.life.delivered.contains_key(&step);
    let outlives = |account: &&mut Account<'_>| account.life.outlives(step);
    let living = members.iter().filter(|account| outlives(account)).count();
    let delivering = members.iter().filter(|account| outlives(account) && has_delivered(account)).count();
    assert!(delivering == 0 || delivering == living, "{delivering} of {living} have delivered {step:?}");
    for account in &mut members {
        let rank = account.life.rank;
        let [handed_in, kept] = &account.life.begun[&step];
        assert_eq!(*handed_in, account.handed_in, "rank {rank} before {step:?}");
        assert_eq!(*kept, account.kept, "the residuals of rank {rank} before {step:?}");
        add(&mut account.handed_in, &gradients(rank, step.number));
        add(&mut account.kept, &gradients(rank, step.number));
    }
    if delivering > 0 {
        assert_eq!(members.len(), step.size as usize, "{step:?}");
        let (sum, left) = reference(&members.iter().map(|account| account.kept.clone()).collect::<Vec<_>>());
        for (account, left) in members.iter_mut().zip(left) {
            if let Some(averages) = account.life.delivered.get(&step) {
                assert_eq!(sums(averages, step.size), sum, "rank {} in {step:?}", account.life.rank);
            }
            account.kept = left;
        }
        add(model, &sum);
    }
    for account in members {
        let is_last = account.life.begun.range(step..).count() == 1;
        if account.life.outlives(step) {
            continue;
        }
        account.is_closed = delivering == 0 && has_delivered(&account);
        if is_last || account.is_closed {
            match (has_delivered(&account), delivering > 0) {
                (true, _) => deaths.between += 1,
                (false, true) => deaths.at_the_end += 1,
                (false, false) => deaths.within += 1,
            }
        }
    }
}

/// The sums of what ranks have, and what each of them keeps.
fn reference(gathered: &[Tensors]) -> (Tensors, Vec<Tensors>) {
    let of = |tensor: usize| gathered.iter().map(|tensors| tensors[tensor].clone()).collect::<Vec<_>>();
    let dense = oracle::sum(&of(0));
    let selected = of(1).into_iter().map(|vector| oracle::top_k(&vector, KEPT)).collect::<Vec<_>>();
    let sparse = selected.iter().fold(BTreeMap::new(), |sum, own| oracle::add(&sum, own));
    let (merged, merged_kept) = oracle::gtopk_step(&of(2), KEPT);
    let mut left = Vec::new();
    for ((tensors, selected), merged_kept) in gathered.iter().zip(&selected).zip(merged_kept) {
        let mut top_k_kept = tensors[1].clone();
        selected.keys().for_each(|index| top_k_kept[*index as usize] = 0.0);
        left.push([vec![0.0; COUNT], top_k_kept, merged_kept]);
    }
    ([dense, oracle::dense(&sparse, COUNT), oracle::dense(&merged, COUNT)], left)
}
