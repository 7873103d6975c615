// SPDX-License-Identifier: Apache-2.0
// What the Triton path prints: locations on every operation and argument with their aliases at the end, an i32 loop, signed
// views, hexadecimal constants, an argmax as a reduction of two operands, reshapes with a constant shape tensor.

#map = affine_map<(d0, d1) -> (d0, d1)>
#map1 = affine_map<(d0) -> (d0)>
module {
  func.func public @argmax_rows(%x_ptr: index loc("x_ptr"(#loc)), %values_ptr: index loc("values_ptr"(#loc)), %index_ptr: index loc("index_ptr"(#loc)), %rows: i32 loc("rows"(#loc))) attributes {grid = [4], noinline = false} {
    %cst = arith.constant dense<0xFF800000> : tensor<1xf32> loc(#loc1)
    %cst_0 = arith.constant dense<0> : tensor<1xi32> loc(#loc1)
    %c0_i32 = arith.constant 0 : i32 loc(#loc1)
    %c1_i32 = arith.constant 1 : i32 loc(#loc1)
    %c4_i32 = arith.constant 4 : i32 loc(#loc1)
    %c0 = arith.constant 0 : index loc(#loc1)
    %shape = arith.constant dense<[1, 64]> : tensor<2xi32> loc(#loc1)
    %pid = ktdp.get_compute_tile_id : index loc(#loc2)
    %pid_i32 = arith.index_cast %pid : index to i32 loc(#loc2)
    %0 = ktdp.construct_memory_view %x_ptr, sizes: [16, 64], strides: [64, 1] {coordinate_set = #set, memory_space = #ktdp.memory_space<global>} : memref<16x64xf16> loc(#loc3)
    %1 = ktdp.construct_memory_view %values_ptr, sizes: [16], strides: [1] {coordinate_set = #set1, memory_space = #ktdp.memory_space<global>} : memref<16xf32> loc(#loc3)
    %2 = ktdp.construct_memory_view %index_ptr, sizes: [16], strides: [1] {coordinate_set = #set1, memory_space = #ktdp.memory_space<global>} : memref<16xsi32> loc(#loc3)
    scf.for %i = %c0_i32 to %rows step %c1_i32  : i32 {
      %3 = arith.muli %pid_i32, %c4_i32 : i32 loc(#loc4)
      %4 = arith.addi %3, %i : i32 loc(#loc4)
      %5 = arith.index_cast %4 : i32 to index loc(#loc4)
      %6 = ktdp.construct_access_tile %0[%5, %c0] {access_tile_set = #set2, access_tile_order = #map} : memref<16x64xf16> -> <1x64xindex> loc(#loc5)
      %7 = ktdp.load %6 : <1x64xindex> -> tensor<1x64xf16> loc(#loc5)
      %8 = tensor.reshape %7(%shape) : (tensor<1x64xf16>, tensor<2xi32>) -> tensor<1x64xf16> loc(#loc5)
      %9 = arith.extf %8 : tensor<1x64xf16> to tensor<1x64xf32> loc(#loc5)
      %15 = tensor.generate {
      ^bb0(%arg2: index loc("k.py":12:3), %arg3: index loc("k.py":12:3)):
        %16 = arith.index_castui %arg3 : index to i32 loc(#loc5)
        tensor.yield %16 : i32 loc(#loc5)
      } : tensor<1x64xi32> loc(#loc5)
      %10:2 = linalg.reduce ins(%9, %15 : tensor<1x64xf32>, tensor<1x64xi32>) outs(%cst, %cst_0 : tensor<1xf32>, tensor<1xi32>) dimensions = [1]
        (%in: f32 loc("in"), %in_1: i32, %init: f32, %init_2: i32) {
          %17 = arith.cmpf ogt, %in, %init : f32 loc(#loc6)
          %18 = arith.cmpf oeq, %in, %init : f32 loc(#loc6)
          %19 = arith.cmpi slt, %in_1, %init_2 : i32 loc(#loc6)
          %20 = arith.andi %18, %19 : i1 loc(#loc6)
          %21 = arith.ori %17, %20 : i1 loc(#loc6)
          %22 = arith.select %21, %in, %init : f32 loc(#loc6)
          %23 = arith.select %21, %in_1, %init_2 : i32 loc(#loc6)
          linalg.yield %22, %23 : f32, i32 loc(#loc6)
        } loc(#loc6)
      %11 = ktdp.construct_access_tile %1[%5] {access_tile_set = #set3, access_tile_order = #map1} : memref<16xf32> -> <1xindex> loc(#loc7)
      ktdp.store %10#0, %11 : tensor<1xf32>, <1xindex> loc(#loc7)
      %12 = ktdp.construct_access_tile %2[%5] {access_tile_set = #set3, access_tile_order = #map1} : memref<16xsi32> -> <1xindex> loc(#loc7)
      ktdp.store %10#1, %12 : tensor<1xi32>, <1xindex> loc(#loc7)
    } loc(#loc4)
    return loc(#loc8)
  } loc(#loc)
} loc(#loc)
#set = affine_set<(d0, d1) : (d0 >= 0, -d0 + 15 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#set1 = affine_set<(d0) : (d0 >= 0, -d0 + 15 >= 0)>
#set2 = affine_set<(d0, d1) : (d0 >= 0, -d0 >= 0, d1 >= 0, -d1 + 63 >= 0)>
#set3 = affine_set<(d0) : (d0 >= 0, -d0 >= 0)>
#loc = loc("/tmp/k.py":8:0)
#loc1 = loc(unknown)
#loc2 = loc("/tmp/k.py":10:24)
#loc3 = loc("view (x)"(#loc2))
#loc4 = loc(callsite(#loc2 at #loc3))
#loc5 = loc(fused[#loc2, #loc3])
#loc6 = loc("/tmp/k.py":14:9)
#loc7 = loc("/tmp/k.py":15:9)
#loc8 = loc("/tmp/k.py":9:4)
