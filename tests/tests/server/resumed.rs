//! Servers that begin from what ranks of an earlier one have saved, also with other numbers of workers and
//! servers.
//!
//! In each job shards that are no workers are saved early. Their workers push on, and keep these pushes; the
//! last one they do not even pull. So their states hold pushes that no saved shard has applied.

use std::sync::Arc;

use brevity::server::{Method, Rule, Servers};
use brevity::{Group, ParameterServer};
use brevity_tests::on_local;

use brevity_tests::pushes::{LENS, TOTAL, builder, gradients, residual, zeros};

/// Steps of each worker before shards are saved, and after that.
const BEFORE: u32 = 3;
const AFTER: u32 = 3;

type States = Arc<Vec<Vec<u8>>>;

#[derive(Clone, Copy)]
struct Job {
    method: Method,
    ranks: u32,
    servers: Servers,
    /// What all parameters are where nothing was saved.
    parameter: f32,
    /// For other gradients in each job.
    round: u32,
}

/// What a rank has seen and saved.
#[derive(Clone)]
struct Seen {
    state: Vec<u8>,
    worker: Option<Worked>,
}

/// A worker's vectors, of all elements.
#[derive(Clone)]
struct Worked {
    /// The model and the residuals after the first fetch.
    model: Vec<f32>,
    residual: Vec<f32>,
    /// The sum of its gradients when shards were saved, and in the end; the residuals then.
    handed_in: [Vec<f32>; 2],
    left: [Vec<f32>; 2],
}

/// Workers and servers of a job.
fn numbers(job: Job) -> (u32, u32) {
    match job.servers {
        Servers::EveryRank => (job.ranks, job.ranks),
        Servers::Dedicated(count) => (job.ranks - count, count),
    }
}

fn add(sum: &mut [f32], values: &[f32]) {
    sum.iter_mut().zip(values).for_each(|(sum, value)| *sum += value);
}

fn run(job: Job, states: &States) -> Vec<Seen> {
    let states = Arc::clone(states);
    on_local(job.ranks, move |group| rank(job, &states, group))
}

fn start(job: Job, states: &States, group: &Group, rule: Rule) -> ParameterServer {
    let mut builder = builder(group).method(job.method).servers(job.servers).rule(rule).keep_pushes();
    for state in states.iter() {
        builder = builder.resume(&mut &state[..]).unwrap();
    }
    let parameters = LENS.map(|len| vec![job.parameter; len]);
    builder.build(&parameters).unwrap()
}

fn rank(job: Job, states: &States, group: &Group) -> Seen {
    let mut server = start(job, states, group, Rule::Sgd);
    if !server.is_worker() {
        // Workers begin; they have made their first steps.
        group.barrier().unwrap();
        group.barrier().unwrap();
        let state = save(&mut server);
        group.barrier().unwrap();
        server.serve().unwrap();
        return Seen { state, worker: None };
    }
    let mut parameters = zeros();
    server.fetch(&mut parameters).unwrap();
    let (model, kept) = (parameters.concat(), residual(&server));
    group.barrier().unwrap();
    let mut handed_in = vec![0.0; TOTAL];
    let mut push = |server: &mut ParameterServer, step| {
        let gradients = gradients(group.rank(), job.round * 100 + step);
        add(&mut handed_in, &gradients.concat());
        server.push(&gradients, 1.0).unwrap();
        (handed_in.clone(), residual(server))
    };
    let mut first = (vec![], vec![]);
    for step in 0..BEFORE {
        first = push(&mut server, step);
        server.pull(&mut parameters).unwrap();
    }
    group.barrier().unwrap();
    group.barrier().unwrap();
    for step in BEFORE..BEFORE + AFTER {
        push(&mut server, step);
        server.pull(&mut parameters).unwrap();
    }
    let last = push(&mut server, BEFORE + AFTER);
    let state = save(&mut server);
    server.leave().unwrap();
    let worker = Worked { model, residual: kept, handed_in: [first.0, last.0], left: [first.1, last.1] };
    Seen { state, worker: Some(worker) }
}

fn save(server: &mut ParameterServer) -> Vec<u8> {
    let mut state = Vec::new();
    server.save(&mut state).unwrap();
    server.confirm_saved();
    state
}

fn states(seen: &[Seen]) -> States {
    Arc::new(seen.iter().map(|seen| seen.state.clone()).collect())
}

fn workers(seen: &[Seen]) -> impl Iterator<Item = &Worked> {
    seen.iter().filter_map(|seen| seen.worker.as_ref())
}

/// The sum over workers of a vector of each.
fn sum<'a>(seen: &'a [Seen], vector: impl Fn(&'a Worked) -> &'a [f32]) -> Vec<f32> {
    let mut sum = vec![0.0; TOTAL];
    workers(seen).for_each(|worker| add(&mut sum, vector(worker)));
    sum
}

/// Checks that every worker has fetched the same model, and returns it.
fn fetched(seen: &[Seen]) -> &[f32] {
    let models: Vec<&[f32]> = workers(seen).map(|worker| &worker.model[..]).collect();
    assert!(models.iter().all(|model| *model == models[0]), "{models:?}");
    models[0]
}

/// From job to job, each with other numbers: after each start all that was ever handed in is in the model or
/// in residuals. With SAMomentum an entry that is sent leaves its `m`-th part behind: `(1 - m)` of what was
/// sent and `w` are all gradients.
#[test]
fn nothing_is_lost_or_doubled_with_other_numbers() {
    let methods = [
        (Method::gradient_dropping(0.1), 1.0),
        (Method::dgs(0.1, 0.5), 0.5),
        (Method::dgc(0.1, 0.0), 1.0),
        (Method::asgd(), 1.0),
    ];
    let numbers = [
        (4, Servers::Dedicated(2)),
        (4, Servers::Dedicated(1)),
        (4, Servers::Dedicated(3)),
        (3, Servers::EveryRank),
        (4, Servers::Dedicated(1)),
        (4, Servers::Dedicated(2)),
        (4, Servers::Dedicated(2)),
    ];
    for (method, weight) in methods {
        let (mut handed_in, mut saved) = (vec![0.0f32; TOTAL], States::default());
        for (round, (ranks, servers)) in (0..).zip(numbers) {
            let seen = run(Job { method, ranks, servers, parameter: 0.0, round }, &saved);
            let (model, kept) = (fetched(&seen), sum(&seen, |worker| &worker.residual));
            for (index, expected) in handed_in.iter().enumerate() {
                let found = kept[index] - weight * model[index];
                assert_eq!(found, *expected, "{method:?}, job {round}, element {index}");
            }
            assert_eq!(model.iter().any(|element| *element != 0.0), round > 0);
            add(&mut handed_in, &sum(&seen, |worker| &worker.handed_in[1]));
            saved = states(&seen);
        }
    }
}

/// A shard without a state begins from the parameters. What workers have kept for it goes back to them if it
/// tells that it has applied nothing, which it can for equal numbers only, and is dropped otherwise.
#[test]
fn a_shard_without_a_state_begins_from_the_parameters() {
    let method = Method::gradient_dropping(0.1);
    let job = Job { method, ranks: 4, servers: Servers::Dedicated(2), parameter: 0.0, round: 0 };
    let seen = run(job, &States::default());
    let all = states(&seen);
    let without_the_last: States = Arc::new(all[..3].to_vec());
    let [first, handed_in] = [0, 1].map(|when| sum(&seen, |worker| &worker.handed_in[when]));
    let [first_left, left] = [0, 1].map(|when| sum(&seen, |worker| &worker.left[when]));
    for (ranks, servers) in
        [(4, Servers::Dedicated(1)), (4, Servers::Dedicated(2)), (4, Servers::Dedicated(3))]
    {
        let is_equal = servers == Servers::Dedicated(2);
        let job = Job { ranks, servers, parameter: 5.0, round: 1, ..job };
        let later = run(job, &without_the_last);
        let (model, kept) = (fetched(&later), sum(&later, |worker| &worker.residual));
        for index in 0..TOTAL {
            let pushed = handed_in[index] - left[index];
            let pushed_first = first[index] - first_left[index];
            let expected = if index < TOTAL / 2 {
                (-pushed_first, handed_in[index] - pushed_first)
            } else if is_equal {
                (5.0, left[index] + pushed - pushed_first)
            } else {
                (5.0, left[index])
            };
            assert_eq!((model[index], kept[index]), expected, "{servers:?}, element {index}");
        }
    }
}

/// AdaGrad's model and squares of all elements, and what each worker has not pushed, by turns of the workers:
/// all entries are pushed.
struct Oracle {
    model: Vec<f32>,
    squares: Vec<f32>,
    residuals: Vec<Vec<f32>>,
}

const RATE: f32 = 0.5;
const EPSILON: f32 = 1e-8;

impl Oracle {
    fn push(&mut self, worker: usize, gradient: &[f32]) {
        for (index, g) in gradient.iter().enumerate() {
            let g = std::mem::take(&mut self.residuals[worker][index]) + g;
            // A zero is not sent.
            if g != 0.0 {
                self.squares[index] += g * g;
                self.model[index] += -RATE * g / (self.squares[index].sqrt() + EPSILON);
            }
        }
    }

    /// Another number of workers, which take over the residuals by their number modulo theirs.
    fn share(&mut self, workers: u32) {
        let mut shared = vec![vec![0.0; TOTAL]; workers as usize];
        for (number, residual) in self.residuals.iter().enumerate() {
            add(&mut shared[number % workers as usize], residual);
        }
        self.residuals = shared;
    }
}

/// Workers push by turns, so that the order is known. Returns each rank's state, and the models that workers
/// have fetched in the end.
fn by_turns(job: Job, states: &States) -> (States, Vec<Vec<f32>>) {
    let (workers, states) = (numbers(job).0, Arc::clone(states));
    let seen = on_local(job.ranks, move |group| {
        let mut server = start(job, &states, group, Rule::AdaGrad { epsilon: EPSILON });
        let (mut parameters, mut state, rank) = (zeros(), Vec::new(), group.rank());
        if server.is_worker() {
            server.fetch(&mut parameters).unwrap();
        }
        for step in 0..2 {
            for turn in 0..workers {
                if turn == rank {
                    server.push(&gradients(rank, job.round * 100 + step), RATE).unwrap();
                    server.pull(&mut parameters).unwrap();
                }
                group.barrier().unwrap();
            }
            // Workers are saved later than shards that are no workers.
            if server.is_worker() == (step == 1) {
                state = save(&mut server);
            }
            group.barrier().unwrap();
        }
        let is_worker = server.is_worker();
        if is_worker {
            server.fetch(&mut parameters).unwrap();
        }
        server.leave().unwrap();
        (state, is_worker.then(|| parameters.concat()))
    });
    let (states, models): (Vec<_>, Vec<_>) = seen.into_iter().unzip();
    (Arc::new(states), models.into_iter().flatten().collect())
}

/// The squares count for other numbers, too: without them later steps would be longer.
#[test]
fn the_squares_of_adagrad_go_with_their_elements() {
    let method = Method::gradient_dropping(1.0);
    let residuals = vec![vec![0.0; TOTAL]; 2];
    let mut oracle = Oracle { model: vec![0.0; TOTAL], squares: vec![0.0; TOTAL], residuals };
    let mut saved = States::default();
    let numbers_of_jobs = [
        (4, Servers::Dedicated(2)),
        (4, Servers::Dedicated(1)),
        (4, Servers::Dedicated(3)),
        (3, Servers::EveryRank),
        (4, Servers::Dedicated(1)),
    ];
    for (round, (ranks, servers)) in (0..).zip(numbers_of_jobs) {
        let job = Job { method, ranks, servers, parameter: 0.0, round };
        let workers = numbers(job).0;
        oracle.share(workers);
        let (states, models) = by_turns(job, &saved);
        let mut at_save = None;
        for step in 0..2 {
            for worker in 0..workers {
                oracle.push(worker as usize, &gradients(worker, round * 100 + step).concat());
            }
            if step == 0 {
                at_save = Some((oracle.model.clone(), oracle.squares.clone()));
            }
        }
        for model in &models {
            assert_eq!(*model, oracle.model, "job {round}");
        }
        if let Some((model, squares)) = at_save.filter(|_| servers != Servers::EveryRank) {
            // What the saved shards have not applied goes back.
            (oracle.model, oracle.squares) = (model, squares);
            for worker in 0..workers {
                let kept = gradients(worker, round * 100 + 1).concat();
                add(&mut oracle.residuals[worker as usize], &kept);
            }
        }
        saved = states;
    }
}
