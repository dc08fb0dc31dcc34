//! What agents are made of, over an API server in memory.

use super::*;

fn leading(clock: &SharedClock, seconds: u64) -> (tokio::sync::watch::Sender<LeaderState>, Fence) {
    let epoch = Epoch { transitions: 1, holder: "me".into() };
    let valid_until = Moment::now(&**clock).plus(Duration::from_secs(seconds));
    let (sender, receiver) =
        tokio::sync::watch::channel(LeaderState::Leading(Leadership { epoch, before: None, valid_until }));
    (sender, Fence::new(receiver, clock.clone()))
}

#[tokio::test(start_paused = true)]
async fn the_fence_and_the_limits_of_an_agent_hold_over_it() {
    let clock = SystemClock::shared();
    let server = ApiServer::new("east", clock.clone());
    let (_sender, fence) = leading(&clock, 10);
    let clients = Clients::over(&server, fence, &RequestMetrics::default(), &clock);
    let write = async |name: &str| {
        let api: Api<ConfigMap> = Api::namespaced(clients.writer.clone(), "n");
        let params = PatchParams::apply("m");
        api.patch(name, &params, &Patch::Apply(map(name, json!({})))).await.map_err(Cause::from)
    };
    write("a").await.unwrap();
    server.fail_next("patch", "configmaps", Fault::DelayAnswer(WRITE_LIMIT * 2));
    assert!(matches!(write("b").await, Err(Cause::Fenced(FenceError::TimedOut { .. }))));
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert!(matches!(write("c").await, Err(Cause::Fenced(FenceError::NotLeading))));
    assert_eq!(server.writes().iter().map(|write| write.request.name.as_str()).collect::<String>(), "ab");
    assert!(server.writes().iter().all(|write| write.request.manager == "m" && write.code == 201));
    let api: Api<ConfigMap> = Api::namespaced(clients.reader.clone(), "n");
    assert_eq!(api.list(&ListParams::default()).await.unwrap().items.len(), 2);
    assert!(api.delete("a", &DeleteParams::default()).await.is_err(), "it only reads");
}

#[tokio::test(start_paused = true)]
async fn agents_elect_a_leader_over_it_who_writes_through_the_gate() {
    let clock = SystemClock::shared();
    let server = ApiServer::new("east", clock.clone());
    let candidate = |holder: &str| {
        let (state, fence) = Fence::closed(clock.clone());
        let clients = Clients::over(&server, fence.clone(), &RequestMetrics::default(), &clock);
        let (namespace, lease) = ("n".to_owned(), "agent".to_owned());
        let candidacy = Candidacy { namespace, lease, holder: holder.to_owned(), watches: Vec::new() };
        let stop = CancellationToken::new();
        let elector = Elector::new(&clients, candidacy, state, fence.clone(), clock.clone());
        tokio::spawn(elector.run(stop.clone()));
        (Applier::new(clients.writer, "m"), fence, stop)
    };
    let agents = [candidate("a"), candidate("b")];
    let leader = async || {
        tokio::time::sleep(Duration::from_secs(30)).await;
        let leading: Vec<_> = agents.iter().filter(|(_, fence, _)| fence.leading().is_some()).collect();
        assert_eq!(leading.len(), 1);
        leading[0]
    };
    let owner = json!({"apiVersion": "v1", "kind": "Pod", "name": "o", "uid": "u", "controller": true});
    let mut wanted = map("a", json!({"k": "v"}));
    wanted["metadata"]["namespace"] = "n".into();
    wanted["metadata"]["ownerReferences"] = json!([owner]);
    let wanted: ConfigMap = serde_json::from_value(wanted).unwrap();

    let (applier, first, stop) = leader().await;
    let made = applier.own(&wanted, None).await.unwrap().object().unwrap();
    assert_eq!(applier.own(&wanted, Some(&made)).await.unwrap(), Applied::Unchanged);
    let theirs = server.patch::<ConfigMap>("n", "a", json!({"data": {"k": "theirs"}})).unwrap();
    assert!(matches!(applier.own(&wanted, Some(&theirs)).await.unwrap(), Applied::Changed(_)));
    stop.cancel();
    let (applier, second, _) = leader().await;
    assert_ne!(second.leading().map(|one| one.epoch), first.leading().map(|one| one.epoch));
    assert_eq!(applier.own(&wanted, None).await.unwrap(), Applied::Unchanged, "it is found, and ours");
}

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
