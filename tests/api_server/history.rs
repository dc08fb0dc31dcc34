//! A minute with faults by a seed, and its history.

use super::*;

/// Writers, caches and faults for a minute: what was written, in its order.
fn minute(seed: u64) -> (Vec<Write>, Vec<String>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap();
    runtime.block_on(async {
        let server = server();
        let (cache, filling) =
            caches::all::<ConfigMap, _>(client(&server), &Selection::default(), SeededRng::new(seed));
        let filling = tokio::spawn(filling);
        let rng = Mutex::new(SeededRng::new(seed));
        server.on_request(move |_| match tributary_clock::Rng::next_u64(&mut *rng.lock()) % 8 {
            0 => Some(Fault::Break),
            1 => Some(Fault::LoseAnswer),
            2 => Some(Fault::Answer(409)),
            3 => Some(Fault::DelayAnswer(Duration::from_millis(700))),
            _ => None,
        });
        let writers = (0..4).map(|writer| {
            let api = maps(&server);
            tokio::spawn(async move {
                for round in 0..40 {
                    let config = map(&format!("of-{}", round % 5), json!({format!("w{writer}"): round.to_string()}));
                    let params = PatchParams::apply(&format!("w{writer}")).force();
                    let name = config["metadata"]["name"].as_str().unwrap().to_owned();
                    // It fails as it is told to.
                    drop(api.patch(&name, &params, &Patch::Apply(config)).await);
                    tokio::time::sleep(Duration::from_millis(400 + 100 * writer)).await;
                }
            })
        });
        for writer in writers.collect::<Vec<_>>() {
            writer.await.unwrap();
        }
        // Nothing of what happened is missing in the cache, whatever broke.
        server.on_request(|_| None);
        tokio::time::sleep(Duration::from_secs(60)).await;
        let cached: Vec<_> = cache.objects().iter().map(|object| serde_json::to_string(&**object).unwrap()).collect();
        let stored: Vec<_> = server.list::<ConfigMap>().iter().map(|o| serde_json::to_string(o).unwrap()).collect();
        assert_eq!(cached, stored);
        filling.abort();
        let stored = server.list::<ConfigMap>().iter().map(|one| format!("{:?}", one.data)).collect();
        (server.writes(), stored)
    })
}

#[test]
fn the_same_seed_gives_the_same_history() {
    let (writes, objects) = minute(7);
    assert_eq!((&writes, &objects), (&minute(7).0, &minute(7).1));
    assert!(writes.len() > 80, "{}", writes.len());
    assert_ne!(writes, minute(8).0);
}
