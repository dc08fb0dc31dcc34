//! What worlds go through.

use std::time::Duration;

use serde_json::json;

use crate::world::World;

/// Runs a world on a thread of its own, on paused time.
pub fn run<F, T>(seed: u64, scenario: F) -> T
where
    F: AsyncFnOnce() -> T + Send + 'static,
    T: Send + 'static,
{
    let body = move || {
        tributary::clock::seed_this_thread(Some(seed));
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_all().start_paused(true).build().expect("a runtime is made");
        runtime.block_on(scenario())
    };
    std::thread::spawn(body).join().expect("the world does not panic")
}

async fn one_burst() -> (Result<(), String>, Vec<String>, World) {
    let mut world = World::new(2);
    let result = async {
        world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]));
        world.until("the burst is ready", Duration::from_secs(120), |world| world.bursts_ready(0, "lake")).await?;
        world.say("the burst is ready");
        world.run(Duration::from_secs(10)).await?;
        world.delete(0, "lake");
        world.until("nothing is left", Duration::from_secs(120), World::nothing_left).await?;
        world.say("nothing is left");
        Ok(())
    }
    .await;
    (result, world.writes(), world)
}

#[test]
fn a_burst_becomes_ready_and_leaves_nothing() {
    if std::env::var_os("WORLDS_LOG").is_some() {
        tracing_subscriber::fmt().with_env_filter(std::env::var("WORLDS_LOG").unwrap()).with_test_writer().init();
    }
    let (result, writes) = run(1, async || {
        let (result, writes, world) = one_burst().await;
        (result.map_err(|error| format!("{error}\n{}", world.history.join("\n"))), writes)
    });
    if std::env::var_os("WORLDS_LOG").is_some() {
        println!("{}", writes.join("\n"));
    }
    result.unwrap();
}
