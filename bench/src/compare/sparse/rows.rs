//! The rows: two sides that do the same for the gradients of a model, one way and another, and the bar.

use brevity::transport::bootstrap::Choice;

use super::work::{Does, Gradients};
use crate::compare::bar::Bar;
use crate::compare::pairs::{Alike, Comparison, Contestant, Effort, OfJob, Subject, compare};
use crate::compare::rows::NOT_SHARED;
use crate::job::{Job, own_program};
use crate::net::Hosts;
use crate::order::What;
use crate::peers::Gloo;
use crate::{Error, collective};

/// The hidden command of a rank.
const RANK: &str = "sparse-rank";

/// Time for large vectors to be made, and for slow links.
const TIMEOUT: (&str, &str) = ("BREVITY_TIMEOUT", "140");

/// The links of hosts, and their burst, as `tc` writes them: for short messages.
const RATE: &str = "100mbit";
const BURST: &str = "32kb";

/// Gradients by their name in the arguments of a rank.
const ONE: Gradients = Gradients::Vectors(1, 25_000_000);
const MANY: Gradients = Gradients::Vectors(500, 50_000);
const MATRIX: Gradients = Gradients::Matrix(4096, 6104);
const RESNET: Gradients = Gradients::Resnet50;

/// A wire.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum On {
    /// Sockets over loopback.
    Sockets,
    /// Links of 100 Mbit/s between hosts of one rank each.
    Links,
}

/// A side of Brevity: its name, and what its ranks do.
#[derive(Clone, Copy, Debug, PartialEq)]
struct Side {
    name: &'static str,
    does: Does,
    gradients: Gradients,
    /// A policy's text, a format of values or a type of elements.
    how: &'static str,
}

/// The other side.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Against {
    Ours(Side),
    /// Torch's dense all-reduce of as many elements, by Gloo.
    TorchDense,
    /// What a backward pass of torch's DDP takes longer with its PowerSGD hook of this rank than without
    /// communication.
    TorchPowerSgd(usize),
}

/// A row of the table.
#[derive(Debug, PartialEq)]
pub struct Row {
    /// The name for `--only`.
    pub name: &'static str,
    /// What is compared.
    pub about: &'static str,
    ranks: u32,
    on: On,
    ours: &'static [Side],
    theirs: Against,
    bar: Option<Bar>,
}

/// The peers that were found, and how much is measured.
pub struct Stage {
    /// Torch with Gloo.
    pub gloo: Option<Gloo>,
    /// How much is measured.
    pub effort: Effort,
    /// Whether this only says that everything works.
    pub quick: bool,
}

/// Why a row has no figures.
pub enum Missing {
    /// This machine lacks something.
    Here(String),
    /// Brevity's side has failed.
    Failed(Error),
}

impl From<Error> for Missing {
    fn from(error: Error) -> Self {
        Self::Failed(error)
    }
}

const fn step(name: &'static str, gradients: Gradients, how: &'static str) -> Side {
    Side { name, does: Does::Step, gradients, how }
}

const fn gtopk(name: &'static str, how: &'static str) -> Side {
    Side { name, does: Does::Gtopk, gradients: ONE, how }
}

const fn dense(name: &'static str, how: &'static str) -> Side {
    Side { name, does: Does::Dense, gradients: ONE, how }
}

const LOW_RANK_4: &str = "*=low-rank:4";
/// On fast links pairs, as in the parts of a step; packed `f32` on slow ones.
const GTOPK: &str = "*=gtopk:0.001,values=pairs";
const PACKED_GTOPK: &str = "*=gtopk:0.001,values=f32";

/// All rows, in the order of measurement.
pub const ALL: &[Row] = &[
    Row {
        name: "gtopk-tcp",
        about: "gTop-k all-reduce of 25,000 of 25 M entries, raw pairs; packed f32 beside it",
        ranks: 4,
        on: On::Sockets,
        ours: &[gtopk("pairs", "pairs")],
        theirs: Against::Ours(gtopk("packed f32", "f32")),
        bar: Some(Bar::Time(2_500.0)),
    },
    Row {
        name: "gtopk-f32",
        about: "the same at 100 Mbit/s, packed f32; raw pairs beside it",
        ranks: 4,
        on: On::Links,
        ours: &[gtopk("packed f32", "f32")],
        theirs: Against::Ours(gtopk("pairs", "pairs")),
        bar: Some(Bar::Time(45_000.0)),
    },
    Row {
        name: "gtopk-bf16",
        about: "the same at 100 Mbit/s, packed bf16; raw pairs beside it",
        ranks: 4,
        on: On::Links,
        ours: &[gtopk("packed bf16", "bf16")],
        theirs: Against::Ours(gtopk("pairs", "pairs")),
        bar: Some(Bar::Time(30_000.0)),
    },
    Row {
        name: "tensors-tcp",
        about: "a step of 500 sparse tensors over one of 25 M together, gTop-k, density 0.001",
        ranks: 4,
        on: On::Sockets,
        ours: &[step("500 tensors", MANY, GTOPK)],
        theirs: Against::Ours(step("one tensor", ONE, GTOPK)),
        bar: Some(Bar::Ratio(1.5)),
    },
    Row {
        name: "tensors-link",
        about: "the same at 100 Mbit/s, packed f32",
        ranks: 4,
        on: On::Links,
        ours: &[step("500 tensors", MANY, PACKED_GTOPK)],
        theirs: Against::Ours(step("one tensor", ONE, PACKED_GTOPK)),
        bar: Some(Bar::Ratio(1.5)),
    },
    Row {
        name: "resnet50",
        about: "a step of ResNet-50's 161 tensors, gTop-k 0.001, over its kernels and its collective",
        ranks: 2,
        on: On::Sockets,
        ours: &[step("step", RESNET, GTOPK)],
        theirs: Against::Ours(Side { does: Does::Parts, ..step("its parts", RESNET, "0.001") }),
        bar: Some(Bar::Ratio(1.2)),
    },
    Row {
        name: "whole-f32",
        about: "a step of 25 M, gTop-k 0.001, packed f32, over a dense all-reduce of f32, at 100 Mbit/s",
        ranks: 4,
        on: On::Links,
        ours: &[step("gtopk", ONE, PACKED_GTOPK)],
        theirs: Against::Ours(dense("dense f32", "f32")),
        bar: Some(Bar::Ratio(1.0 / 80.0)),
    },
    Row {
        name: "whole-bf16",
        about: "the same over a dense all-reduce of bf16",
        ranks: 4,
        on: On::Links,
        ours: &[step("gtopk", ONE, PACKED_GTOPK)],
        theirs: Against::Ours(dense("dense bf16", "bf16")),
        bar: Some(Bar::Ratio(1.0 / 40.0)),
    },
    Row {
        name: "low-rank",
        about: "a whole step of 4096 x 6104, low rank 4, over a dense all-reduce of f32, at 100 Mbit/s",
        ranks: 4,
        on: On::Links,
        ours: &[step("low-rank 4", MATRIX, LOW_RANK_4)],
        theirs: Against::Ours(dense("dense f32", "f32")),
        bar: Some(Bar::Ratio(1.0 / 60.0)),
    },
    Row {
        name: "torch-dense",
        about: "whole steps of 25 M over torch's dense all-reduce, loopback",
        ranks: 2,
        on: On::Sockets,
        ours: &[step("gtopk", ONE, GTOPK), step("low-rank 4", MATRIX, LOW_RANK_4)],
        theirs: Against::TorchDense,
        bar: None,
    },
    Row {
        name: "powersgd",
        about: "a step of 4096 x 6104, low rank 2, over what torch's PowerSGD hook adds to none",
        ranks: 2,
        on: On::Sockets,
        ours: &[step("low-rank 2", MATRIX, "*=low-rank:2")],
        theirs: Against::TorchPowerSgd(2),
        bar: Some(Bar::Ratio(0.15)),
    },
    Row {
        name: "overlap",
        about: "ResNet-50, low rank 4, 100 Mbit/s: a step beside 100 ms of computing, over one alone",
        ranks: 2,
        on: On::Links,
        ours: &[Side { does: Does::Computing, ..step("overlapped", RESNET, LOW_RANK_4) }],
        theirs: Against::Ours(step("alone", RESNET, LOW_RANK_4)),
        bar: Some(Bar::Ratio(0.5)),
    },
];

impl Row {
    /// Measures the row.
    ///
    /// # Errors
    /// [`Missing::Here`] without hosts or a peer; [`Missing::Failed`] if Brevity's side fails.
    pub fn measure(&self, stage: &Stage) -> Result<Vec<Comparison>, Missing> {
        let hosts = match self.on {
            On::Sockets => None,
            On::Links => {
                let made = Hosts::shaped(self.ranks, 1, (RATE, BURST));
                Some(made.map_err(|error| Missing::Here(error.to_string()))?)
            }
        };
        let hosts = hosts.as_ref();
        let mut all = Vec::new();
        for side in self.ours {
            let gradients = side.gradients.scaled(stage.quick);
            let mut ours = OfJob::slowest(self.start(*side, hosts, stage.quick)?);
            let theirs = self.peer(gradients, hosts, stage)?;
            let mut theirs: Vec<Box<dyn Contestant>> = vec![Box::new(Alike::start_as_many(1, theirs)?)];
            let (what, wire) = (self.name.to_owned(), self.on.name());
            let subject = Subject { what, wire, world_size: self.ranks, bytes: gradients.bytes() };
            let found = compare(&subject, What::Average, &mut ours, &mut theirs, stage.effort)?;
            if found.is_empty() {
                return Err(Missing::Here("the other side could not be measured".into()));
            }
            let found = found.into_iter().map(|comparison| comparison.with_kernels(&ours.kernels));
            all.extend(found.map(|comparison| match self.bar {
                Some(bar) => comparison.judged(bar),
                None => comparison,
            }));
        }
        Ok(all)
    }

    /// Starts ranks of Brevity.
    fn start(&self, side: Side, hosts: Option<&Hosts>, quick: bool) -> crate::Result<Job> {
        let gradients = side.gradients.scaled(quick).to_string();
        let words = [side.does.name(), &gradients, side.how];
        let Some(hosts) = hosts else {
            return Job::ours_as(RANK, side.name, self.ranks, Choice::Tcp, &words, &[NOT_SHARED, TIMEOUT]);
        };
        Job::theirs(side.name, self.ranks, |socket| {
            let mut command = hosts.run(&own_program()?);
            let wire = ("BREVITY_TRANSPORT", Choice::Tcp.name());
            command.arg(RANK).arg(socket).args(words).envs([wire, TIMEOUT]);
            Ok(vec![command])
        })
    }

    /// How the other side is started.
    fn peer<'a>(
        &'a self,
        gradients: Gradients,
        hosts: Option<&'a Hosts>,
        stage: &'a Stage,
    ) -> Result<impl Fn() -> crate::Result<OfJob> + 'a, Missing> {
        let needs_torch = !matches!(self.theirs, Against::Ours(_));
        if needs_torch && stage.gloo.is_none() {
            return Err(Missing::Here(format!("no {}", Gloo::NAME)));
        }
        let torch = move || {
            let missing = || Error::contestant(Gloo::NAME, "not found");
            stage.gloo.as_ref().ok_or_else(missing)
        };
        Ok(move || match self.theirs {
            Against::Ours(side) => self.start(side, hosts, stage.quick).map(OfJob::slowest),
            Against::TorchDense => {
                let instead = Some(What::Collective(collective::Collective::AllReduce));
                Ok(OfJob { instead, ..OfJob::slowest(torch()?.start(self.ranks)?) })
            }
            Against::TorchPowerSgd(rank) => {
                torch()?.start_power_sgd(self.ranks, gradients.matrix(), rank).map(OfJob::slowest)
            }
        })
    }
}

impl On {
    /// The name in tables.
    const fn name(self) -> &'static str {
        match self {
            Self::Sockets => "tcp",
            Self::Links => "100M",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_have_names_of_their_own_and_the_bars_of_the_table() {
        let names: std::collections::BTreeSet<&str> = ALL.iter().map(|row| row.name).collect();
        assert_eq!(names.len(), ALL.len());
        let bar = |name: &str| ALL.iter().find(|row| row.name == name).unwrap().bar;
        assert_eq!(bar("gtopk-tcp"), Some(Bar::Time(2_500.0)));
        assert_eq!(bar("gtopk-bf16"), Some(Bar::Time(30_000.0)));
        assert_eq!((bar("powersgd"), bar("torch-dense")), (Some(Bar::Ratio(0.15)), None));
        assert_eq!(bar("whole-bf16"), Some(Bar::Ratio(1.0 / 40.0)));
        for text in [GTOPK, PACKED_GTOPK, LOW_RANK_4] {
            assert!(text.parse::<brevity::PolicyRules>().is_ok(), "{text}");
        }
    }
}
