//! A server of one rank: what its calls do, and refuse.

use std::future::Future;
use std::pin::pin;
use std::sync::Arc;
use std::task::{Context, Poll, Wake, Waker};
use std::thread::{self, Thread};
use std::time::Duration;

use brevity_collectives::{Group, Settings};
use ucx_sys_wrap::local;

use super::method::{Method, Rule, Servers, Threshold};
use super::{ParameterServer, ServerBuilder};
use crate::Error;

/// Wakes a thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}

fn block_on<F: Future>(future: F) -> F::Output {
    let waker = Waker::from(Arc::new(Unpark(thread::current())));
    let (mut future, mut context) = (pin!(future), Context::from_waker(&waker));
    loop {
        match future.as_mut().poll(&mut context) {
            Poll::Ready(output) => return output,
            Poll::Pending => thread::park(),
        }
    }
}

/// A solo server that keeps its pushes, after one step.
fn stepped() -> (ParameterServer, [Vec<f32>; 1]) {
    let builder = ParameterServer::builder(&Group::solo()).tensor("all", [4]);
    let mut parameters = [vec![0.0f32; 4]];
    let builder = builder.method(Method::gradient_dropping(0.25)).keep_pushes();
    let mut server = builder.build(&parameters).unwrap();
    server.fetch(&mut parameters).unwrap();
    server.step(&[[1.0, 2.0, 3.0, 4.0]], 1.0, &mut parameters).unwrap();
    (server, parameters)
}

/// Takes everything, and fails in the end, as a full disk behind a buffer.
struct Full;

impl std::io::Write for Full {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Err(std::io::ErrorKind::StorageFull.into())
    }
}

#[test]
fn pushes_are_kept_until_a_state_is_safe() {
    let (mut server, mut parameters) = stepped();
    let mut kept = |server: &mut ParameterServer| {
        server.pull(&mut parameters).unwrap();
        server.worker.as_ref().unwrap().seats[0].aside.len()
    };
    assert!(server.save(&mut Full).is_err());
    server.confirm_saved();
    assert_eq!(kept(&mut server), 1, "nothing was saved");
    server.save(&mut Vec::new()).unwrap();
    assert_eq!(kept(&mut server), 1, "it may still be lost");
    server.confirm_saved();
    assert_eq!(kept(&mut server), 0);
}

/// However many there are: a push that is kept is longer than its elements.
#[test]
fn many_kept_pushes_are_read_again() {
    let (mut server, mut parameters) = stepped();
    for _ in 0..30_000 {
        server.step(&[[0.0f32, 0.0, 0.0, 1.0]], 0.001, &mut parameters).unwrap();
    }
    let mut state = Vec::new();
    server.save(&mut state).unwrap();
    let builder = ParameterServer::builder(server.group()).tensor("all", [4]);
    let builder = builder.method(Method::gradient_dropping(0.25)).keep_pushes();
    let resumed = builder.resume(&mut &state[..]).unwrap().build(&parameters).unwrap();
    let seat = &resumed.worker.as_ref().unwrap().seats[0];
    assert_eq!((seat.aside.len(), seat.step), (30_001, 30_001));
    // Of counts that are in the file alone there is no memory: it is cut off.
    let cut = ParameterServer::builder(server.group()).tensor("all", [4]);
    let cut = cut.method(Method::gradient_dropping(0.25)).resume(&mut &state[..state.len() / 2]);
    assert!(matches!(cut.map(drop), Err(Error::State(_))));
}

#[test]
fn states_of_others_are_refused_in_words() {
    let (mut server, _) = stepped();
    let mut state = Vec::new();
    server.save(&mut state).unwrap();
    let refusal = |name: &str, len: usize, method| {
        let builder = ParameterServer::builder(&Group::solo()).tensor(name, [len]).method(method);
        builder.resume(&mut &state[..]).map(drop).unwrap_err().to_string()
    };
    let dropping = Method::gradient_dropping(0.25);
    let with_squares = ParameterServer::builder(&Group::solo()).tensor("all", [4]).method(dropping);
    let with_squares = with_squares.rule(Rule::AdaGrad { epsilon: 1e-8 });
    let text = with_squares.clone().resume(&mut &state[..]).map(drop).unwrap_err().to_string();
    assert!(text.contains("by gradient dropping with AdaGrad"), "{text}");
    let mut adagrad = with_squares.build(&[[0.0f32; 4]]).unwrap();
    let mut squares = Vec::new();
    adagrad.save(&mut squares).unwrap();
    let plain = ParameterServer::builder(&Group::solo()).tensor("all", [4]).method(dropping);
    assert!(matches!(plain.resume(&mut &squares[..]).map(drop), Err(Error::State(_))));
    for (text, found, expected) in [
        (refusal("all", 4, Method::dgs(0.25, 0.5)), "by gradient dropping", "by dgs"),
        (refusal("all", 5, dropping), "of 4 elements", "expected the state of a server of 5 elements"),
        (refusal("other", 4, dropping), "tensors of other names or lengths", "of 4 elements"),
    ] {
        assert!(text.contains(found) && text.contains(expected), "{text}");
    }
}

#[test]
fn settings_that_change_after_a_state_was_read_are_refused() {
    let (mut server, parameters) = stepped();
    let mut state = Vec::new();
    server.save(&mut state).unwrap();
    let builder = ParameterServer::builder(server.group()).tensor("all", [4]);
    let resumed = builder.method(Method::gradient_dropping(0.5)).resume(&mut &state[..]).unwrap();
    assert!(resumed.clone().secondary_density(0.5).build(&parameters).is_ok());
    let other_method = resumed.clone().method(Method::dgc(0.5, 0.5)).build(&parameters);
    let [first] = parameters;
    let more_tensors = resumed.tensor("more", [3]).build(&[first, vec![0.0; 3]]);
    for built in [other_method, more_tensors] {
        assert!(matches!(built.map(drop), Err(Error::State(_))));
    }
}

/// Also after a push whose answer was not pulled, and after a wait that was given up.
#[test]
fn a_fetch_brings_the_whole_model() {
    let builder = ParameterServer::builder(&Group::solo()).tensor("all", [4]);
    let builder = builder.method(Method::gradient_dropping(0.25));
    let mut server = builder.build(&[vec![7.0f32; 4]]).unwrap();
    let fetched = |server: &mut ParameterServer| {
        let mut parameters = [vec![0.0f32; 4]];
        server.fetch(&mut parameters).map(|()| parameters[0].clone())
    };
    assert_eq!(fetched(&mut server).unwrap(), [7.0; 4]);
    server.push(&[[1.0, 2.0, 3.0, 4.0]], 1.0).unwrap();
    assert_eq!(fetched(&mut server).unwrap(), [7.0, 7.0, 7.0, 3.0]);
    // Its answer comes too late, and that of the fetch as well.
    let desk = Arc::clone(&server.desk.as_ref().unwrap().counter);
    let shard = desk.shard.lock().unwrap();
    server.set_timeout(Duration::ZERO);
    server.push(&[[0.0f32; 4]], 1.0).unwrap();
    let is_silent = |ended| matches!(ended, Err(Error::ServerSilent { .. }));
    assert!(is_silent(fetched(&mut server)) && is_silent(fetched(&mut server)));
    is_refused_until_a_fetch(&mut server);
    drop(shard);
    server.set_timeout(Duration::from_secs(60));
    assert_eq!(fetched(&mut server).unwrap(), [7.0, 7.0, 4.0, 3.0]);
}

/// The answer that it waits for is in no parameters.
fn is_refused_until_a_fetch(server: &mut ParameterServer) {
    let pulled = server.pull(&mut [vec![0.0f32; 4]]);
    assert!(matches!(pulled, Err(Error::Order { what: "a pull before a fetch", .. })), "{pulled:?}");
    let pushed = server.push(&[[0.0f32; 4]], 1.0);
    assert!(matches!(pushed, Err(Error::Order { what: "a push before a fetch", .. })), "{pushed:?}");
}

/// While it waits for the answer to a push.
#[test]
fn a_fetch_that_is_given_up_is_made_again() {
    let (mut server, mut parameters) = stepped();
    let desk = Arc::clone(&server.desk.as_ref().unwrap().counter);
    let shard = desk.shard.lock().unwrap();
    server.push(&[[0.0f32; 4]], 1.0).unwrap();
    let mut context = Context::from_waker(Waker::noop());
    assert!(pin!(server.fetch_async(&mut parameters)).poll(&mut context).is_pending());
    drop(shard);
    is_refused_until_a_fetch(&mut server);
    server.fetch(&mut parameters).unwrap();
    assert_eq!(parameters[0], server.model().unwrap().1);
    server.pull(&mut parameters).unwrap();
}

/// Runs this on each of so many ranks.
fn on_ranks(ranks: u32, body: impl Fn(&Group) + Copy + Send + 'static) {
    let spawn = |rank| thread::spawn(move || body(&Group::new(Box::new(rank), Settings::default())));
    let ranks: Vec<_> = local::world(ranks).into_iter().map(spawn).collect();
    ranks.into_iter().for_each(|rank| rank.join().unwrap());
}

/// Nobody leaves; also a shard that no worker has asked yet.
#[test]
fn workers_that_are_silent_are_waited_for_until_the_timeout() {
    on_ranks(2, |group| {
        let parameters = [vec![0.0f32; 4]];
        let builder = ParameterServer::builder(group).tensor("all", [4]);
        let every = builder.clone().build(&parameters).unwrap();
        let mut dedicated = builder.servers(Servers::Dedicated(1)).build(&parameters).unwrap();
        let is_silent = |ended| matches!(ended, Err(Error::WorkersSilent { ranks, .. }) if ranks == [0]);
        if group.rank() == 0 {
            group.barrier().unwrap();
            assert_eq!(dedicated.serve().unwrap(), None);
            dedicated.leave().unwrap();
            drop(every);
            return;
        }
        dedicated.set_timeout(Duration::from_millis(200));
        assert!(is_silent(dedicated.serve()));
        assert!(is_silent(block_on(dedicated.serve_async())));
        assert!(!dedicated.serve_for(Duration::from_millis(1)).unwrap());
        let mut every = every;
        assert!(matches!(every.serve(), Err(Error::Order { .. })));
        every.set_timeout(Duration::from_millis(200));
        assert!(is_silent(every.leave()));
        group.barrier().unwrap();
        dedicated.set_timeout(Duration::from_secs(60));
        assert_eq!(dedicated.serve().unwrap().unwrap().pushes, 0);
    });
}

/// The timeout of building is that of waiting for the others, and no other's.
#[test]
fn who_builds_a_server_alone_waits_until_the_timeout() {
    on_ranks(2, |group| {
        let parameters = [vec![0.0f32; 4]];
        let builder = ParameterServer::builder(group).tensor("all", [4]);
        let groups = [group.duplicate().unwrap(), group.duplicate().unwrap()];
        if group.rank() == 0 {
            for (which, group) in groups.iter().enumerate() {
                let builder = ParameterServer::builder(group).tensor("all", [4]);
                let builder = builder.timeout(Duration::from_millis(100));
                let built = match which {
                    0 => builder.build(&parameters),
                    _ => block_on(builder.build_async(&parameters)),
                };
                let after = match built.err() {
                    Some(Error::Collective(brevity_collectives::Error::Timeout { after, .. })) => after,
                    other => panic!("{other:?}"),
                };
                assert!(after < Duration::from_secs(10), "{after:?}");
            }
        }
        group.barrier().unwrap();
        let server = builder.timeout(Duration::from_secs(60)).build(&parameters).unwrap();
        server.leave().unwrap();
    });
}

/// Residuals are not even rounded.
#[test]
fn gradients_that_are_not_finite_change_nothing() {
    let methods =
        [Method::asgd(), Method::gradient_dropping(0.25), Method::dgs(0.25, 0.5), Method::dgc(0.25, 0.5)];
    for method in methods {
        let builder = ParameterServer::builder(&Group::solo()).tensor("a", [4]).tensor("b", [4]);
        let mut parameters = [vec![0.0f32; 4], vec![0.0; 4]];
        let mut server = builder.method(method).build(&parameters).unwrap();
        server.fetch(&mut parameters).unwrap();
        server.step(&[[0.1, 0.2, 0.3, 0.4], [0.0; 4]], 1.0, &mut parameters).unwrap();
        let before = server.residual("a");
        let pushed = server.push(&[[1e10, -1e10, 1e10, 1e11], [f32::NAN, 0.0, 0.0, 0.0]], 1.0);
        assert!(matches!(pushed, Err(Error::GradientNotFinite { tensor, .. }) if tensor == "b"));
        assert_eq!(server.residual("a"), before, "{method:?}");
    }
}

/// By turns: the pushes of others between a worker's last answer and its push, whenever the answer is pulled.
#[test]
fn the_lag_counts_the_pushes_of_others() {
    let turns = [(0, 0), (0, 0), (1, 2), (0, 1), (1, 1), (1, 0)];
    for method in [Method::asgd(), Method::gradient_dropping(0.25)] {
        let ranks = local::world(2).into_iter().map(|rank| {
            thread::spawn(move || {
                let group = Group::new(Box::new(rank), Settings::default());
                let builder = ParameterServer::builder(&group).tensor("all", [8]).method(method);
                let mut parameters = [vec![0.0f32; 8]];
                let mut server = builder.build(&parameters).unwrap();
                server.fetch(&mut parameters).unwrap();
                group.barrier().unwrap();
                for (clock, (turn, lag)) in (1..).zip(turns) {
                    if turn == group.rank() {
                        let step = server.step(&[[1.0; 8]], 1.0, &mut parameters).unwrap();
                        assert_eq!((step.clock, step.lag), (clock, lag));
                    }
                    group.barrier().unwrap();
                }
                server.leave().unwrap();
            })
        });
        let ranks: Vec<_> = ranks.collect();
        ranks.into_iter().for_each(|rank| rank.join().unwrap());
    }
}

/// The norm is that of a whole tensor, on however many shards it is, and with whatever it shares one.
#[test]
fn clipping_does_not_depend_on_the_shards() {
    for threshold in [Threshold::PerTensor, Threshold::PerShard] {
        on_ranks(3, move |group| {
            for servers in [1, 2] {
                let builder =
                    ParameterServer::builder(group).tensor("x", [1]).tensor("a", [2]).tensor("y", [1]);
                let builder = builder.method(Method::dgc(1.0, 0.0).clip(2.0f64.sqrt())).threshold(threshold);
                let mut parameters = [vec![0.0f32], vec![0.0; 2], vec![0.0]];
                let mut server = builder.servers(Servers::Dedicated(servers)).build(&parameters).unwrap();
                // There are two workers, or one.
                let limit = if servers == 1 { 1.0 } else { 2.0f32.sqrt() };
                if group.rank() == 0 {
                    server.fetch(&mut parameters).unwrap();
                    server.step(&[vec![0.5], vec![3.0, 4.0], vec![0.25]], 1.0, &mut parameters).unwrap();
                    let clipped = parameters[1].iter().zip([0.6, 0.8]);
                    let is_clipped = clipped.map(|(found, g)| (found + g * limit).abs()).all(|by| by < 1e-6);
                    assert!(is_clipped, "{threshold:?} on {servers}: {parameters:?}");
                    assert_eq!([&parameters[0], &parameters[2]], [&[-0.5], &[-0.25]]);
                }
                server.leave().unwrap();
            }
        });
    }
}

#[test]
fn parameters_that_leave_no_room_are_refused() {
    let builder = ParameterServer::builder(&Group::solo()).tensor("all", [2]);
    let text = builder.build(&[[0.0f32, -1e38]]).map(drop).unwrap_err().to_string();
    assert!(text.contains("-1e38 at element 1 of tensor \"all\""), "{text}");
}

#[test]
fn errors_name_what_differs() {
    let (mut server, parameters) = stepped();
    let [first] = parameters;
    let text = server.fetch(&mut [first, vec![0.0]]).unwrap_err().to_string();
    assert!(text.starts_with("the list of parameters has 2 elements, expected 1"), "{text}");
    let text = server.push(&[[0.0; 4], [0.0; 4]], 1.0).unwrap_err().to_string();
    assert!(text.starts_with("the list of gradients has 2 elements, expected 1"), "{text}");
    let text = server.push(&[[0.0; 3]], 1.0).unwrap_err().to_string();
    assert!(text.starts_with("tensor \"all\" of the gradients has 3 elements, expected 4"), "{text}");
    let text = server.push(&[[0.0; 4]], f32::INFINITY).unwrap_err().to_string();
    assert_eq!(text, "the server's learning rate is inf, expected a finite number");
    let refusal = |build: fn(ServerBuilder) -> ServerBuilder| {
        let builder = build(ParameterServer::builder(&Group::solo()).tensor("all", [4]));
        builder.build(&[[0.0; 4]]).map(drop).unwrap_err().to_string()
    };
    let text = refusal(|builder| builder.method(Method::dgs(0.5, 0.0)));
    assert!(text.starts_with("the server's momentum is 0, expected more than 0"), "{text}");
    let text = refusal(|builder| builder.servers(Servers::Dedicated(1)));
    assert!(
        text.starts_with("the server's choice of servers is Dedicated(1) of 1 ranks, expected"),
        "{text}"
    );
}
