//! The tests.

use std::time::Duration;

use serde_json::json;

use crate::chaos::{Chaos, FAULTS};
use crate::world::World;

/// Seeds that are run unless `WORLDS` says how many.
const SEEDS: u64 = 2;

/// Runs a world on a thread of its own, on paused time.
fn on_paused_time<F, T>(seed: u64, scenario: F) -> T
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
    std::thread::Builder::new().stack_size(16 << 20).spawn(body).unwrap().join().expect("the world does not panic")
}

fn log() {
    static ONCE: std::sync::Once = std::sync::Once::new();
    let Ok(filter) = std::env::var("WORLDS_LOG") else { return };
    ONCE.call_once(|| tracing_subscriber::fmt().with_env_filter(filter).with_test_writer().init());
}

async fn one_burst(world: &mut World) -> Result<(), String> {
    world.apply(0, "lake", 2, json!([{"size": 2, "peer": "west"}]));
    world.until("the burst is ready", Duration::from_secs(120), |world| world.bursts_ready(0, "lake")).await?;
    world.say("the burst is ready");
    world.run(Duration::from_secs(10)).await?;
    world.delete(0, "lake");
    world.until("nothing is left", Duration::from_secs(120), World::nothing_left).await?;
    world.say("nothing is left");
    Ok(())
}

#[test]
fn a_burst_becomes_ready_and_leaves_nothing() {
    log();
    let played = || {
        on_paused_time(1, async || {
            let mut world = World::new(2);
            let result = one_burst(&mut world).await;
            (result.map_err(|error| format!("{error}\n{}", world.history.join("\n"))), world.certificates())
        })
    };
    let (result, certificates) = played();
    result.unwrap();
    assert_eq!(certificates, 1);
}

/// The outcome of a seed, its history and its writes.
fn play(seed: u64, faults: Vec<&'static str>, events: usize) -> (Result<(), String>, Vec<String>, Vec<String>) {
    on_paused_time(seed, async move || {
        let mut world = World::new(2 + usize::from(seed.is_multiple_of(3)));
        let mut chaos = Chaos::new(seed, faults);
        let result = chaos.run(&mut world, events).await;
        world.say(format!("done: {:?}", chaos.counts));
        (result, world.history.clone(), world.writes())
    })
}

#[test]
fn a_seed_is_played_the_same_again() {
    let [first, second] = [(); 2].map(|()| play(5, FAULTS.to_vec(), 4));
    assert_eq!(first.1, second.1, "the histories differ");
    // Two writes may change places: `tokio::select!` leaves to chance which of two that are ready comes first.
    assert!(first.2.len() > 100, "{} writes", first.2.len());
}

fn number(name: &str) -> Option<u64> {
    std::env::var(name).ok()?.parse().ok()
}

fn faults() -> Vec<&'static str> {
    let Ok(wanted) = std::env::var("WORLDS_FAULTS") else { return FAULTS.to_vec() };
    FAULTS.into_iter().filter(|fault| wanted.split(',').any(|one| one == *fault)).collect()
}

#[test]
fn worlds_keep_the_rules_and_come_to_rest() {
    log();
    let seeds = match number("WORLDS_SEED") {
        Some(seed) => seed..seed + 1,
        None => {
            let first = number("WORLDS_FIRST").unwrap_or(1);
            first..first + number("WORLDS").unwrap_or(SEEDS)
        }
    };
    let events = usize::try_from(number("WORLDS_EVENTS").unwrap_or(12)).unwrap();
    let mut failed = Vec::new();
    for seed in seeds {
        let (result, history, writes) = play(seed, faults(), events);
        let shown = number("WORLDS_SEED").is_some();
        if let Err(error) = &result {
            println!("WORLDS_SEED={seed} fails: {error}\n{}\n", history.join("\n"));
            failed.push(seed);
        } else if shown {
            println!("{}", history.join("\n"));
        } else {
            println!("seed {seed}: {}", history.last().map_or("", |line| line));
        }
        if std::env::var_os("WORLDS_WRITES").is_some() {
            println!("{}", writes.join("\n"));
        }
    }
    assert!(failed.is_empty(), "seeds that fail: {failed:?}");
}
