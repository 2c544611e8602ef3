//! Collectives in a service on smol. `embed_smol [RANKS [SECONDS]]`: rank 1 is late for the last call.
#![forbid(unsafe_code)]

use std::process::ExitCode;
use std::time::Instant;

use brevity::{Join, ReduceOp};
use brevity_examples::embed::{self, CALLS, Ended, lateness, report, report_processor_time};

fn main() -> ExitCode {
    embed::main(|| smol::block_on(rank()))
}

async fn rank() -> Ended {
    let group = Join::from_env()?.join_async().await?;
    smol::spawn(brevity::smol::drive(&group)?).detach();
    let begun = Instant::now();
    for _ in 0..CALLS {
        group.start_all_reduce(vec![1.0f32; 8], ReduceOp::Sum).await.1?;
    }
    report(group.rank(), "awaited one after the other", begun, CALLS);

    // All at once. The ranks start them in the same order; they end in any.
    let begun = Instant::now();
    let calls: Vec<_> =
        (0..100).map(|_| smol::spawn(group.start_all_reduce(vec![1.0f32; 8], ReduceOp::Sum))).collect();
    for call in calls {
        call.await.1?;
    }
    report(group.rank(), "100 tasks at once", begun, 100);

    // Other tasks run while one waits for a late rank.
    report_processor_time(group.rank());
    if group.rank() == 1 {
        smol::Timer::after(lateness()).await;
    }
    let mut sum = group.start_all_reduce(vec![1.0f32; 8], ReduceOp::Sum).await;
    sum.1?;
    report_processor_time(group.rank());
    assert_eq!(sum.0.pop(), Some(group.world_size() as f32));
    // The last group of the job: other tasks run until what was sent is on its way.
    group.leave().await?;
    Ok(())
}
